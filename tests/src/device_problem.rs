//! A case in device memory: guarded, poisoned where nothing may be written, ready to be launched any number of times.

use crate::call::Call;
use crate::case::{Case, TestElement};
use crate::custom::Tables;
use crate::features::PerHead;
use crate::gpu::{Guarded, POISON, Stream};
use crate::placement::{Placement, row_starts};
use crate::values::Inputs;
use crate::{Failure, ensure};
use hopper_attention::{Dim, Layout, raw};

/// Buffers whose contents are compared after a launch are kept on the host too, up to this size.
const KEPT_BYTES: usize = 1 << 30;

/// O and the log-sum-exp as the device wrote them.
#[derive(Clone, Debug, PartialEq)]
pub struct Output<T> {
    /// `[batch, seqlen_q, num_heads, head_dim_v]`, contiguous.
    pub o: Vec<T>,
    /// `[batch, num_heads, seqlen_q]`, if it was asked for.
    pub lse: Option<Vec<f32>>,
}

impl<T: bytemuck::Pod> Output<T> {
    /// Whether every bit is the same.
    pub fn same_bits(&self, other: &Self) -> bool {
        let bits = |lse: &Option<Vec<f32>>| lse.as_ref().map(|lse| bytemuck::cast_slice::<f32, u32>(lse).to_vec());
        bytemuck::cast_slice::<T, u16>(&self.o) == bytemuck::cast_slice::<T, u16>(&other.o) && bits(&self.lse) == bits(&other.lse)
    }
}

/// An input in device memory, perhaps with a copy on the host.
#[derive(Debug)]
pub(crate) struct Stored<T> {
    pub name: &'static str,
    pub memory: Guarded,
    image: Option<Vec<T>>,
}

impl<T: bytemuck::Pod> Stored<T> {
    /// `offset` is in elements.
    pub fn new(name: &'static str, image: Vec<T>, offset: usize) -> Result<Self, Failure> {
        let bytes = size_of_val(image.as_slice());
        let memory = Guarded::new(bytes, size_of::<T>() * offset)?;
        memory.write(&image)?;
        Ok(Self { name, memory, image: (bytes <= KEPT_BYTES).then_some(image) })
    }

    /// Holds something else from now on, of the same length.
    pub fn replace(&mut self, image: Vec<T>) -> Result<(), Failure> {
        self.memory.write(&image)?;
        self.image = Some(image);
        Ok(())
    }

    /// Fails if it, or what lies around it, was written to.
    pub fn check_unchanged(&self) -> Result<(), Failure> {
        self.memory.check_guards(self.name)?;
        if let Some(image) = &self.image {
            let now: Vec<u16> = self.memory.read()?;
            ensure!(now == bytemuck::cast_slice::<T, u16>(image), "{} was written to", self.name);
        }
        Ok(())
    }
}

/// f32 or i32, by their bits.
pub(crate) type Numbers = Stored<u32>;

impl Numbers {
    /// Where the library finds them.
    pub fn array(&self, len: usize) -> raw::Array {
        raw::Array { address: self.memory.address(), len }
    }
}

/// Sinks and slopes in device memory.
pub(crate) fn per_head(numbers: &PerHead) -> Result<(raw::Arrays, Vec<Numbers>), Failure> {
    let (mut arrays, mut memory) = (raw::Arrays::new(), Vec::new());
    let mut store = |name, values: &Option<Vec<f32>>| -> Result<Option<raw::Array>, Failure> {
        let Some(values) = values else { return Ok(None) };
        let stored = Stored::new(name, values.iter().map(|value| value.to_bits()).collect(), 1)?;
        let array = stored.array(values.len());
        memory.push(stored);
        Ok(Some(array))
    };
    arrays.sinks = store("sinks", &numbers.sinks)?;
    arrays.alibi_slopes = store("alibi_slopes", &numbers.alibi_slopes)?;
    Ok((arrays, memory))
}

/// O and the log-sum-exp in device memory, poisoned until they are written.
#[derive(Debug)]
pub(crate) struct OutputMemory {
    pub o: Guarded,
    pub lse: Option<Guarded>,
    lse_len: usize,
}

impl OutputMemory {
    /// For the case's O in `layout`, and as many numbers of the log-sum-exp if the case asks for it.
    pub fn new(case: &Case, layout: &Layout, lse_len: usize) -> Result<Self, Failure> {
        let o = Guarded::new(2 * span(layout)?, 2 * case.o.offset)?;
        let lse = if case.lse { Some(Guarded::new(4 * lse_len, 4 * (case.seed % 8) as usize)?) } else { None };
        Ok(Self { o, lse, lse_len })
    }

    /// Where the library finds the log-sum-exp.
    pub fn raw_lse(&self) -> Option<raw::Lse> {
        self.lse.as_ref().map(|memory| raw::Lse { address: memory.address(), len: self.lse_len })
    }

    /// Poisons both once more.
    pub fn poison(&self) -> Result<(), Failure> {
        self.o.poison()?;
        self.lse.as_ref().map_or(Ok(()), Guarded::poison)
    }

    /// Fails unless all is still poison: nothing ran.
    pub fn check_untouched(&self) -> Result<(), Failure> {
        let o: Vec<u16> = self.o.read()?;
        let lse: Vec<u16> = self.lse.as_ref().map_or(Ok(Vec::new()), Guarded::read)?;
        ensure!(o.iter().chain(&lse).all(|&bits| bits == POISON), "something was written although the call was refused");
        Ok(())
    }

    /// Fails if a guard was written to.
    pub fn check_guards(&self) -> Result<(), Failure> {
        self.o.check_guards("o")?;
        self.lse.as_ref().map_or(Ok(()), |memory| memory.check_guards("lse"))
    }
}

/// A case in device memory.
#[derive(Debug)]
pub struct DeviceProblem<T> {
    case: Case,
    /// The arguments of the call.
    pub call: Call,
    numbers: Vec<Numbers>,
    inputs: Vec<Stored<T>>,
    output: OutputMemory,
    tables: Option<Tables>,
}

impl<T: TestElement> DeviceProblem<T> {
    /// Puts the inputs of a case into memory of the current context, and poisons the output.
    pub fn new(case: &Case, inputs: &Inputs<T>) -> Result<Self, Failure> {
        let (stored, [q, k, v]) = if case.packed { packed(case, inputs)? } else { separate(case, inputs)? };
        let o_layout = case.o.layout(case.o_shape());
        let output = OutputMemory::new(case, &o_layout, case.batch * case.num_heads * case.seqlen_q)?;
        let (arrays, numbers) = per_head(&case.per_head())?;
        let tables = case.features.custom.map(|custom| Tables::new(custom.function, &case.sequences(), case.num_heads)).transpose()?;
        Ok(Self {
            case: case.clone(),
            call: Call {
                q,
                k,
                v,
                o: tensor::<T>(output.o.address(), o_layout),
                lse: output.raw_lse(),
                options: case.options(),
                arrays,
                custom: tables.as_ref().map(|tables| tables.call(case.dtype)),
            },
            numbers,
            inputs: stored,
            output,
            tables,
        })
    }

    /// Enqueues the attention.
    pub fn enqueue(&self, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: the tensors lie in memory of this value, which frees it no sooner than the device is done with it (cuMemFree waits); a
        // value's output is read after the stream has been waited for only.
        unsafe { self.call.enqueue(stream) }?;
        Ok(())
    }

    /// Enqueues, waits, and reads the output.
    pub fn run(&self, stream: &Stream) -> Result<Output<T>, Failure> {
        self.enqueue(stream)?;
        stream.wait(|| self.case.text())?;
        self.output()
    }

    /// The same by a call for each query head and batch entry, into the same memory.
    pub fn run_heads_alone(&self, stream: &Stream) -> Result<Output<T>, Failure> {
        for call in self.call.heads_alone()? {
            // SAFETY: as in `enqueue`; each call reads and writes part of what the whole one does.
            unsafe { call.enqueue(stream) }?;
        }
        stream.wait(|| self.case.text())?;
        self.output()
    }

    /// Poisons the output once more.
    pub fn poison_output(&self) -> Result<(), Failure> {
        self.output.poison()
    }

    /// Reads the output; fails if an element was not written, or one that is not part of it was.
    pub fn output(&self) -> Result<Output<T>, Failure> {
        let mut image: Vec<u16> = self.output.o.read()?;
        let shape = self.case.o_shape();
        let head_dim = shape[3];
        let mut o = Vec::with_capacity(shape.iter().product());
        for (row, start) in row_starts(&self.call.o.layout, shape).enumerate() {
            let written = &mut image[start..start + head_dim];
            let missing = written.iter().position(|&bits| bits == POISON);
            ensure!(missing.is_none(), "O was not written in row {row} (of batch * seqlen * heads), column {missing:?}");
            o.extend_from_slice(bytemuck::cast_slice::<u16, T>(written));
            written.fill(POISON);
        }
        let stray = image.iter().position(|&bits| bits != POISON);
        ensure!(stray.is_none(), "a gap of O was written to, {stray:?} elements from its start");
        let lse = self.output.lse.as_ref().map(Guarded::read::<f32>).transpose()?;
        let poison = u32::from(POISON) << 16 | u32::from(POISON);
        let missing = lse.as_ref().and_then(|lse| lse.iter().position(|value| value.to_bits() == poison));
        ensure!(missing.is_none(), "LSE was not written, row {missing:?} (of batch * heads * seqlen)");
        Ok(Output { o, lse })
    }

    /// Fails unless the output is still poison: nothing ran.
    pub fn check_untouched(&self) -> Result<(), Failure> {
        self.output.check_untouched()?;
        self.check_surroundings()
    }

    /// Fails if an input or a guard was written to.
    pub fn check_surroundings(&self) -> Result<(), Failure> {
        self.inputs.iter().try_for_each(Stored::check_unchanged)?;
        self.numbers.iter().try_for_each(Stored::check_unchanged)?;
        self.tables.iter().try_for_each(Tables::check_unchanged)?;
        self.output.check_guards()
    }
}

pub(crate) fn span(layout: &Layout) -> Result<usize, Failure> {
    layout.span().ok_or_else(|| Failure(format!("{layout:?} spans more than a usize counts")))
}

pub(crate) fn tensor<T: TestElement>(address: u64, layout: Layout) -> raw::Tensor4 {
    raw::Tensor4 { address, dtype: T::DTYPE, layout }
}

/// The memory of a tensor: its rows where the layout has them, poison between them.
fn image<T: TestElement>(rows: &[T], placement: &Placement, shape: [usize; 4]) -> Result<Vec<T>, Failure> {
    let layout = placement.layout(shape);
    let span = span(&layout)?;
    if span == rows.len() && placement.order == Placement::BSHD.order {
        return Ok(rows.to_vec());
    }
    let mut image = vec![bytemuck::cast::<u16, T>(POISON); span];
    for (start, row) in row_starts(&layout, placement.stored(shape)).zip(rows.chunks_exact(shape[3])) {
        image[start..start + shape[3]].copy_from_slice(row);
    }
    Ok(image)
}

type InMemory<T> = (Vec<Stored<T>>, [raw::Tensor4; 3]);

fn separate<T: TestElement>(case: &Case, inputs: &Inputs<T>) -> Result<InMemory<T>, Failure> {
    let mut stored = Vec::new();
    let mut place = |name, rows, placement: &Placement, shape| {
        let memory = Stored::new(name, image(rows, placement, shape)?, placement.offset)?;
        let tensor = tensor::<T>(memory.memory.address(), placement.layout(shape));
        stored.push(memory);
        Ok::<_, Failure>(tensor)
    };
    let tensors = [
        place("q", &inputs.q, &case.q, case.q_shape())?,
        place("k", &inputs.k, &case.k, case.k_shape())?,
        place("v", &inputs.v, &case.v, case.v_shape())?,
    ];
    Ok((stored, tensors))
}

/// Q, K and V side by side in each position.
fn packed<T: TestElement>(case: &Case, inputs: &Inputs<T>) -> Result<InMemory<T>, Failure> {
    let alike = case.seqlen_q == case.seqlen_k && case.o_head_dim() == case.head_dim;
    ensure!(alike, "a packed QKV has as many queries as keys, and one head_dim");
    let (heads, heads_k, head_dim) = (case.num_heads, case.num_heads_k, case.head_dim);
    let rows = case.batch * case.seqlen_q;
    let mut image = Vec::with_capacity(rows * (heads + 2 * heads_k) * head_dim);
    for row in 0..rows {
        for (data, heads) in [(&inputs.q, heads), (&inputs.k, heads_k), (&inputs.v, heads_k)] {
            image.extend_from_slice(&data[row * heads * head_dim..][..heads * head_dim]);
        }
    }
    let stored = Stored::new("qkv", image, case.q.offset)?;
    let layout = Layout::bshd([case.batch, case.seqlen_q, heads + 2 * heads_k, head_dim]);
    let whole = tensor::<T>(stored.memory.address(), layout);
    let slice = |from, count| whole.slice(Dim::Heads, from..from + count);
    let tensors = [slice(0, heads)?, slice(heads, heads_k)?, slice(heads + heads_k, heads_k)?];
    Ok((vec![stored], tensors))
}
