//! Tensors in and out of safetensors files.

use half::{bf16, f16};
use hopper_attention::{Element, Layout};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::{Order, Result};

/// What a file and a comparison need to know of an element.
pub trait FileElement: Element {
    /// What safetensors calls it.
    const FILE_DTYPE: Dtype;
    /// Half the distance from 1 to the next larger number.
    const UNIT_ROUNDOFF: f64;
}

impl FileElement for f16 {
    const FILE_DTYPE: Dtype = Dtype::F16;
    const UNIT_ROUNDOFF: f64 = 1.0 / (1u64 << 11) as f64;
}

impl FileElement for bf16 {
    const FILE_DTYPE: Dtype = Dtype::BF16;
    const UNIT_ROUNDOFF: f64 = 1.0 / (1u64 << 8) as f64;
}

/// The tensors of a file.
pub struct Tensors<'a>(SafeTensors<'a>);

impl<'a> Tensors<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        Ok(Self(SafeTensors::deserialize(bytes).map_err(|error| format!("not a safetensors file: {error}"))?))
    }

    /// Whether the file has a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.names().contains(&name)
    }

    /// A tensor, or an error that says which there are.
    pub fn get(&self, name: &str) -> Result<TensorView<'a>> {
        Ok(self.0.tensor(name).map_err(|_| {
            let mut names = self.0.names();
            names.sort_unstable();
            // A file's names may hold what a terminal takes for commands.
            let names: Vec<_> = names.into_iter().map(|name| name.escape_debug().to_string()).collect();
            format!("the file has no tensor '{name}'; it has: {}", names.join(", "))
        })?)
    }

    /// A tensor of floating-point numbers of any width.
    pub fn floats(&self, name: &str) -> Result<(Vec<f64>, Vec<usize>)> {
        let tensor = self.get(name)?;
        let bytes = tensor.data();
        let values = match tensor.dtype() {
            Dtype::F16 => values(bytes, f16::to_f64),
            Dtype::BF16 => values(bytes, bf16::to_f64),
            Dtype::F32 => values(bytes, |value: f32| f64::from(value)),
            Dtype::F64 => values(bytes, |value: f64| value),
            other => return Err(format!("{name} is {other:?}, but must be F16, BF16, F32 or F64").into()),
        };
        Ok((values, tensor.shape().to_vec()))
    }
}

/// The values may lie at any address, aligned or not.
fn values<T: bytemuck::Pod, U>(bytes: &[u8], convert: impl Fn(T) -> U) -> Vec<U> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).map(convert).collect()
}

/// Q, K and V, each with its layout.
pub struct Inputs<T> {
    pub q: (Vec<T>, Layout),
    pub k: (Vec<T>, Layout),
    pub v: (Vec<T>, Layout),
}

impl<T: FileElement> Inputs<T> {
    pub fn read(tensors: &Tensors, order: Order) -> Result<Self> {
        let read = |name: &str| {
            let tensor = tensors.get(name)?;
            if tensor.dtype() != T::FILE_DTYPE {
                return Err(format!("{name} is {:?}, but q is {:?}", tensor.dtype(), T::FILE_DTYPE).into());
            }
            Ok::<_, Box<dyn std::error::Error>>((values(tensor.data(), |value: T| value), order.layout(name, tensor.shape())?))
        };
        Ok(Self { q: read("q")?, k: read("k")?, v: read("v")? })
    }
}

impl Order {
    /// The layout of a tensor whose dimensions a file has in this order.
    pub fn layout(self, name: &str, shape: &[usize]) -> Result<Layout> {
        match (self, shape) {
            (Self::Bshd, &[batch, seqlen, heads, head_dim]) => Ok(Layout::bshd([batch, seqlen, heads, head_dim])),
            (Self::Bhsd, &[batch, heads, seqlen, head_dim]) => Ok(Layout::bhsd([batch, seqlen, heads, head_dim])),
            _ => Err(format!("{name} has the shape {shape:?}, but must have 4 dimensions").into()),
        }
    }
}

/// The elements of a tensor in the order [batch, seqlen, heads, head_dim], from those that lie as `layout` says.
pub fn in_order_bshd<T: Copy>(values: &[T], layout: &Layout) -> Vec<T> {
    if values.is_empty() {
        // An empty tensor's other extents may be anything.
        return Vec::new();
    }
    let Layout { shape: [batch, seqlen, heads, head_dim], strides } = *layout;
    let starts =
        (0..batch).flat_map(|b| (0..seqlen).flat_map(move |s| (0..heads).map(move |h| b * strides[0] + s * strides[1] + h * strides[2])));
    starts.flat_map(|start| &values[start..start + head_dim]).copied().collect()
}

/// The bytes of a file with `o`, given in the order [batch, seqlen, heads, head_dim], in the order of the file, and `lse`.
pub fn serialize<T: FileElement>(o: &[T], lse: &[f32], shape: [usize; 4], order: Order) -> Result<Vec<u8>> {
    let [batch, seqlen, heads, head_dim] = shape;
    let (o, o_shape) = match order {
        Order::Bshd => (o.to_vec(), shape.to_vec()),
        // Seen with seqlen and heads exchanged, the contiguous [b, s, h, d] lies as a [b, h, s, d] would.
        Order::Bhsd => (in_order_bshd(o, &Layout::bhsd([batch, heads, seqlen, head_dim])), vec![batch, heads, seqlen, head_dim]),
    };
    let o = TensorView::new(T::FILE_DTYPE, o_shape, bytemuck::cast_slice(&o))?;
    let lse = TensorView::new(Dtype::F32, vec![batch, heads, seqlen], bytemuck::cast_slice(lse))?;
    Ok(safetensors::serialize([("o", o), ("lse", lse)], None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_round_trip_in_both_orders() {
        let shape = [2, 3, 5, 8];
        let o: Vec<f16> = (0..240).map(|i| f16::from_f32(i as f32)).collect();
        let lse: Vec<f32> = (0..30).map(|i| i as f32).collect();
        for (order, file_shape) in [(Order::Bshd, [2, 3, 5, 8]), (Order::Bhsd, [2, 5, 3, 8])] {
            let bytes = serialize(&o, &lse, shape, order).unwrap();
            let tensors = Tensors::parse(&bytes).unwrap();
            assert_eq!(tensors.get("o").unwrap().dtype(), Dtype::F16);
            let (values, read_shape) = tensors.floats("o").unwrap();
            assert_eq!(read_shape, file_shape);
            let layout = order.layout("o", &read_shape).unwrap();
            assert_eq!(layout.shape, shape);
            assert!(in_order_bshd(&values, &layout).iter().zip(&o).all(|(read, o)| *read == o.to_f64()));
            assert_eq!(tensors.floats("lse").unwrap().1, [2, 5, 3]);
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let tensor = |dtype| TensorView::new(dtype, vec![1, 1, 1, 32 / dtype.bitsize()], &[0; 4]).unwrap();
        let bytes = safetensors::serialize([("q", tensor(Dtype::F16)), ("k", tensor(Dtype::F32))], None).unwrap();
        let tensors = Tensors::parse(&bytes).unwrap();
        assert_eq!(tensors.get("v").unwrap_err().to_string(), "the file has no tensor 'v'; it has: k, q");
        assert_eq!(Inputs::<f16>::read(&tensors, Order::Bshd).err().unwrap().to_string(), "k is F32, but q is F16");
        assert!(Order::Bshd.layout("q", &[1, 2, 3]).unwrap_err().to_string().contains("4 dimensions"));
        assert!(Tensors::parse(b"no safetensors").is_err());
        let bytes = safetensors::serialize([("\x1b[2Jq\n", tensor(Dtype::F16))], None).unwrap();
        let error = Tensors::parse(&bytes).unwrap().get("q").unwrap_err().to_string();
        assert_eq!(error, "the file has no tensor 'q'; it has: \\u{1b}[2Jq\\n");
    }
}
