//! Typed tensors over the device memory of the crate `cust`.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;

use cust::memory::{CopyDestination, DeviceBuffer, DeviceCopy, DeviceSlice};

use crate::error::{check, check_cust, driver};
use crate::{DType, Dim, Element, Error, Layout, raw};

/// A tensor `[batch, seqlen, heads, head_dim]` that owns its device memory.
///
/// The memory holds the elements' bits as `u16`, because cust implements its `DeviceCopy` for the types of half 1 only.
#[derive(Debug)]
pub struct Tensor<T> {
    buffer: DeviceBuffer<u16>,
    layout: Layout,
    element: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    /// Takes a buffer of elements' bits; element `[0, 0, 0, 0]` is the first.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the layout reaches beyond the buffer.
    pub fn new(buffer: DeviceBuffer<u16>, layout: Layout) -> Result<Self, Error> {
        check_span(&layout, buffer.len())?;
        Ok(Self { buffer, layout, element: PhantomData })
    }

    /// Copies elements, laid out as `layout` says, to new device memory. The copy is complete on return, so that any stream may use the
    /// tensor; it waits for earlier work of the legacy default stream, and cannot be captured.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the layout reaches beyond `values`, [`Error::Driver`] if there is no memory or earlier work failed.
    pub fn from_slice(values: &[T], layout: Layout) -> Result<Self, Error> {
        check_span(&layout, values.len())?;
        // SAFETY: the elements are written on the next line, before anything reads them.
        let mut buffer = unsafe { uninitialized(values.len())? };
        check_cust("cuMemcpyHtoD_v2", buffer.copy_from(bytemuck::cast_slice(values)))?;
        wait_for_default_stream()?;
        Self::new(buffer, layout)
    }

    /// New device memory that holds zeros, as many as `layout` spans. They are there on return, so that any stream may use the tensor; this
    /// waits for earlier work of the legacy default stream, and cannot be captured.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the layout reaches beyond the address space, [`Error::Driver`] if there is no memory or earlier work failed.
    pub fn zeroed(layout: Layout) -> Result<Self, Error> {
        // SAFETY: the elements are set on the next line, before anything reads them.
        let mut buffer = unsafe { uninitialized(span(&layout)?)? };
        check_cust("cuMemsetD8_v2", buffer.set_zero())?;
        wait_for_default_stream()?;
        Self::new(buffer, layout)
    }

    /// New device memory for a contiguous tensor, not initialised.
    ///
    /// # Safety
    ///
    /// Every element is written before anything reads it.
    pub(crate) unsafe fn uninitialized(shape: [usize; 4]) -> Result<Self, Error> {
        let layout = Layout::bshd(shape);
        // SAFETY: passed on to the caller.
        Self::new(unsafe { uninitialized(span(&layout)?)? }, layout)
    }

    /// Copies the elements to the host, in the order `[batch, seqlen, heads, head_dim]` whatever the layout.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if the copy fails, which may be due to earlier work; [`Error::Invalid`] if a broadcast tensor has more elements
    /// than a `Vec` can hold.
    pub fn to_vec(&self) -> Result<Vec<T>, Error> {
        let too_many = || Error::invalid("the number of elements", format!("{:?}", self.layout.shape), "small enough for memory");
        let elements = self.layout.elements().ok_or_else(too_many)?;
        if elements == 0 {
            // Its other extents may be anything.
            return Ok(Vec::new());
        }
        let mut memory = with_room_for(self.buffer.len()).ok_or_else(too_many)?;
        memory.resize(self.buffer.len(), T::zeroed());
        check_cust("cuMemcpyDtoH_v2", self.buffer.copy_to(bytemuck::cast_slice_mut(&mut memory)))?;
        if self.layout == Layout::bshd(self.layout.shape) {
            memory.truncate(elements);
            return Ok(memory);
        }
        let mut values = with_room_for(elements).ok_or_else(too_many)?;
        let Layout { shape: [batch, seqlen, heads, head_dim], strides } = self.layout;
        for batch_idx in 0..batch {
            for position in 0..seqlen {
                for head_idx in 0..heads {
                    let start = batch_idx * strides[0] + position * strides[1] + head_idx * strides[2];
                    values.extend_from_slice(&memory[start..start + head_dim]);
                }
            }
        }
        Ok(values)
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// `[batch, seqlen, heads, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    /// The device memory: the elements' bits.
    pub fn buffer(&self) -> &DeviceBuffer<u16> {
        &self.buffer
    }

    /// Gives up the tensor for its device memory.
    pub fn into_buffer(self) -> DeviceBuffer<u16> {
        self.buffer
    }

    /// The whole tensor, to be read.
    pub fn view(&self) -> TensorView<'_, T> {
        TensorView { raw: raw_tensor::<T>(&self.buffer, self.layout), memory: PhantomData }
    }

    /// The whole tensor, to be written.
    pub fn view_mut(&mut self) -> TensorViewMut<'_, T> {
        TensorViewMut { raw: raw_tensor::<T>(&self.buffer, self.layout), memory: PhantomData }
    }
}

/// An empty `Vec` that so many elements fit, if there is memory for them.
fn with_room_for<T>(elements: usize) -> Option<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(elements).is_ok().then_some(values)
}

/// A borrowed tensor `[batch, seqlen, heads, head_dim]`, or part of one, to be read.
#[derive(Debug)]
pub struct TensorView<'a, T> {
    raw: raw::Tensor4,
    memory: PhantomData<&'a [T]>,
}

impl<T> Clone for TensorView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TensorView<'_, T> {}

/// A borrowed tensor `[batch, seqlen, heads, head_dim]`, or part of one, to be written.
#[derive(Debug)]
pub struct TensorViewMut<'a, T> {
    raw: raw::Tensor4,
    memory: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element> TensorView<'a, T> {
    /// Views device memory that holds elements' bits; element `[0, 0, 0, 0]` is the first.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the layout reaches beyond `memory`.
    pub fn new(memory: &'a DeviceSlice<u16>, layout: Layout) -> Result<Self, Error> {
        check_span(&layout, memory.len())?;
        Ok(Self { raw: raw_tensor::<T>(memory, layout), memory: PhantomData })
    }

    /// Part of a dimension: the keys so far of a cache, or K of a packed QKV.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless `range` lies within the extent of `dim`.
    pub fn slice(self, dim: Dim, range: Range<usize>) -> Result<Self, Error> {
        Ok(Self { raw: self.raw.slice(dim, range)?, ..self })
    }

    /// Repeats the one entry of `dim` (batch or heads) `extent` times, without a copy.
    ///
    /// # Errors
    ///
    /// Those of [`Layout::broadcast`].
    pub fn broadcast(self, dim: Dim, extent: usize) -> Result<Self, Error> {
        Ok(Self { raw: self.raw.broadcast(dim, extent)?, ..self })
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.raw.layout
    }

    /// Address, dtype and layout, for the [`raw`] layer.
    pub fn as_raw(&self) -> &raw::Tensor4 {
        &self.raw
    }
}

impl<'a, T: Element> TensorViewMut<'a, T> {
    /// Views device memory that holds elements' bits; element `[0, 0, 0, 0]` is the first.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the layout reaches beyond `memory`.
    pub fn new(memory: &'a mut DeviceSlice<u16>, layout: Layout) -> Result<Self, Error> {
        check_span(&layout, memory.len())?;
        Ok(Self { raw: raw_tensor::<T>(memory, layout), memory: PhantomData })
    }

    /// Part of a dimension.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless `range` lies within the extent of `dim`.
    pub fn slice(self, dim: Dim, range: Range<usize>) -> Result<Self, Error> {
        Ok(Self { raw: self.raw.slice(dim, range)?, ..self })
    }

    /// Shape and strides.
    pub fn layout(&self) -> &Layout {
        &self.raw.layout
    }

    /// Address, dtype and layout, for the [`raw`] layer.
    pub fn as_raw(&self) -> &raw::Tensor4 {
        &self.raw
    }
}

impl<'a, T: Element> From<&'a Tensor<T>> for TensorView<'a, T> {
    fn from(tensor: &'a Tensor<T>) -> Self {
        tensor.view()
    }
}

impl<'a, T: Element> From<&TensorView<'a, T>> for TensorView<'a, T> {
    fn from(view: &TensorView<'a, T>) -> Self {
        *view
    }
}

impl<'a, T: Element> From<&'a mut Tensor<T>> for TensorViewMut<'a, T> {
    fn from(tensor: &'a mut Tensor<T>) -> Self {
        tensor.view_mut()
    }
}

impl<'a, T: Element> From<&'a mut TensorViewMut<'_, T>> for TensorViewMut<'a, T> {
    fn from(view: &'a mut TensorViewMut<'_, T>) -> Self {
        Self { raw: view.raw, memory: PhantomData }
    }
}

/// New device memory, not initialised.
///
/// # Safety
///
/// Every element is written before anything reads it.
pub(crate) unsafe fn uninitialized<T: DeviceCopy>(len: usize) -> Result<DeviceBuffer<T>, Error> {
    // SAFETY: passed on to the caller.
    check_cust("cuMemAlloc_v2", unsafe { DeviceBuffer::uninitialized(len) })
}

/// Copies and sets without a stream of their own may still be on their way on return, and `NON_BLOCKING` streams do not follow them.
fn wait_for_default_stream() -> Result<(), Error> {
    // SAFETY: null is the legacy default stream, which every context has.
    check("cuStreamSynchronize", unsafe { driver()?.cuStreamSynchronize(ptr::null_mut()) })
}

fn raw_tensor<T: Element>(memory: &DeviceSlice<u16>, layout: Layout) -> raw::Tensor4 {
    raw::Tensor4 { address: memory.as_device_ptr().as_raw(), dtype: T::DTYPE, layout }
}

fn span(layout: &Layout) -> Result<usize, Error> {
    let bytes = |span: &usize| span.checked_mul(DType::BYTES as usize).is_some();
    layout.span().filter(bytes).ok_or_else(|| {
        let Layout { shape, strides } = layout;
        Error::invalid("layout", format!("{shape:?} with strides {strides:?}"), "within the address space")
    })
}

fn check_span(layout: &Layout, len: usize) -> Result<(), Error> {
    let span = span(layout)?;
    if span > len {
        let Layout { shape, strides } = layout;
        let value = format!("{shape:?} with strides {strides:?}, which spans {span} elements");
        return Err(Error::invalid("layout", value, format!("within the {len} elements of the memory")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cust::memory::DevicePointer;
    use half::{bf16, f16};

    use super::*;

    /// Views never touch memory, so a slice at a made-up address will do.
    fn memory(len: usize) -> DeviceSlice<u16> {
        // SAFETY: nothing dereferences it.
        unsafe { DeviceSlice::from_raw_parts(DevicePointer::from_raw(0x10000), len) }
    }

    #[test]
    fn views_stay_inside_their_memory() {
        let shape = [2, 3, 5, 8];
        for layout in [Layout::bshd(shape), Layout::bhsd(shape)] {
            let mut exact = memory(240);
            assert_eq!(TensorView::<f16>::new(&exact, layout).unwrap().layout(), &layout);
            assert_eq!(TensorViewMut::<f16>::new(&mut exact, layout).unwrap().layout(), &layout);
            let mut short = memory(239);
            let refused = |error: Error| matches!(error, Error::Invalid { field, .. } if field == "layout");
            assert!(refused(TensorView::<f16>::new(&short, layout).unwrap_err()));
            assert!(refused(TensorViewMut::<f16>::new(&mut short, layout).unwrap_err()));
        }
        let huge = Layout::bshd([1, usize::MAX / 8, 1, 8]);
        assert!(TensorView::<f16>::new(&memory(usize::MAX), huge).is_err());
    }

    #[test]
    fn broadcast_needs_the_memory_of_one_entry() {
        let layout = Layout::bshd([1, 3, 1, 8]).broadcast(Dim::Heads, 71).unwrap();
        assert!(TensorView::<bf16>::new(&memory(24), layout).is_ok());
        assert!(TensorView::<bf16>::new(&memory(23), layout).is_err());
    }

    #[test]
    fn memory_that_there_is_not_is_no_end_of_the_process() {
        assert!(with_room_for::<u16>(usize::MAX).is_none());
        // More than any address space, and less than a `Vec` may have.
        assert!(with_room_for::<u16>(isize::MAX as usize / 2).is_none());
        assert!(with_room_for::<u16>(100).unwrap().capacity() >= 100);
    }

    #[test]
    fn slices_of_a_packed_qkv() {
        let memory = memory(2 * 7 * 3 * 4 * 64);
        let packed = TensorView::<bf16>::new(&memory, Layout::bshd([2, 7, 3 * 4, 64])).unwrap();
        let [q, k, v] = [0, 4, 8].map(|head| *packed.slice(Dim::Heads, head..head + 4).unwrap().as_raw());
        assert_eq!([q, k, v].map(|tensor| tensor.address), [0x10000, 0x10000 + 512, 0x10000 + 1024]);
        assert_eq!(q.layout, Layout { shape: [2, 7, 4, 64], strides: [7 * 768, 768, 64] });
        assert_eq!(v.dtype, DType::Bf16);
        assert_eq!(TensorView::from(&packed).as_raw(), packed.as_raw());
        assert!(packed.slice(Dim::Heads, 9..13).is_err());
    }
}
