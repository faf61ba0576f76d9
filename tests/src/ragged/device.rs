//! Ragged sequences in device memory.

use super::{Places, Ragged};
use crate::call::Call;
use crate::case::TestElement;
use crate::custom::Tables;
use crate::device_problem::{Numbers, Output, OutputMemory, Stored, per_head, span, tensor};
use crate::gpu::{Guarded, POISON, Stream};
use crate::placement::Placement;
use crate::values::Inputs;
use crate::{Failure, ensure};
use hopper_attention::{Dim, Layout, raw};

/// The poison as an f32.
const POISON_PAIR: u32 = (POISON as u32) << 16 | POISON as u32;

/// Ragged sequences in device memory. Rows that belong to nobody, and gaps, are NaN and huge in turns in Q, K and V, and poison in O and the
/// log-sum-exp.
#[derive(Debug)]
pub struct RaggedProblem<T> {
    /// What it is.
    pub ragged: Ragged,
    /// Q, K and V of each sequence.
    pub inputs: Vec<Inputs<T>>,
    /// The arguments of the call.
    pub call: Call,
    stored: Vec<Stored<T>>,
    per_head: Vec<Numbers>,
    lengths: Vec<Numbers>,
    output: OutputMemory,
    tables: Option<Tables>,
}

impl<T: TestElement> RaggedProblem<T> {
    /// Puts it into memory of the current context, and poisons the output.
    pub fn new(ragged: &Ragged, inputs: Vec<Inputs<T>>) -> Result<Self, Failure> {
        let (images, layouts) = images(ragged, &inputs)?;
        let stored = images.into_iter().map(|(name, image, offset)| Stored::new(name, image, offset)).collect::<Result<Vec<_>, _>>()?;
        let whole = |index: usize| tensor::<T>(stored[index].memory.address(), layouts[index]);
        let (heads, heads_k) = (ragged.case.num_heads, ragged.case.num_heads_k);
        let [q, k, v] = if ragged.case.packed {
            let part = |from, count| whole(0).slice(Dim::Heads, from..from + count);
            [part(0, heads)?, part(heads, heads_k)?, part(heads + heads_k, heads_k)?]
        } else {
            [whole(0), whole(1), whole(2)]
        };
        let places = ragged.q_places();
        let [entries, rows] = places.extents;
        let o_layout = ragged.case.o.layout([entries, rows, heads, ragged.case.o_head_dim()]);
        let output = OutputMemory::new(&ragged.case, &o_layout, entries * heads * rows)?;
        let (mut arrays, per_head) = per_head(&ragged.case.per_head())?;
        let lengths = store_lengths(&places, &ragged.k_places(), &mut arrays)?;
        let custom = ragged.case.features.custom;
        let tables = custom.map(|custom| Tables::new(custom.function, &ragged.sequences(), heads)).transpose()?;
        Ok(Self {
            ragged: ragged.clone(),
            inputs,
            call: Call {
                q,
                k,
                v,
                o: tensor::<T>(output.o.address(), o_layout),
                lse: output.raw_lse(),
                options: ragged.case.options(),
                arrays,
                custom: tables.as_ref().map(|tables| tables.call(ragged.case.dtype)),
            },
            stored,
            per_head,
            lengths,
            output,
            tables,
        })
    }

    /// Puts other sequences into the same memory, and poisons the output: tensors and arrays stay as large as they are.
    pub fn replace(&mut self, ragged: &Ragged, inputs: Vec<Inputs<T>>) -> Result<(), Failure> {
        let (images, _) = images(ragged, &inputs)?;
        let alike = ragged.q_places().extents == self.ragged.q_places().extents && images.len() == self.stored.len();
        ensure!(alike, "other sequences need other tensors: {}", ragged.text());
        for (stored, (_, image, _)) in self.stored.iter_mut().zip(images) {
            stored.replace(image)?;
        }
        let (q, k) = (ragged.q_places(), ragged.k_places());
        for (name, values) in lengths_of(&q, &k) {
            self.write_lengths(name, &values)?;
        }
        if let Some(tables) = &mut self.tables {
            tables.replace(&ragged.sequences())?;
        }
        (self.ragged, self.inputs) = (ragged.clone(), inputs);
        self.poison_output()
    }

    /// Puts any numbers in the place of an array of lengths.
    pub fn write_lengths(&mut self, name: &str, values: &[i32]) -> Result<(), Failure> {
        let array = self.lengths.iter_mut().find(|array| array.name == name);
        let array = array.ok_or_else(|| Failure(format!("there is no {name}")))?;
        array.replace(values.iter().map(|&value| value as u32).collect())
    }

    /// Enqueues the attention.
    pub fn enqueue(&self, stream: &Stream) -> Result<(), Failure> {
        // SAFETY: all of it lies in memory of this value, which frees it no sooner than the device is done with it (cuMemFree waits); a
        // value's output is read after the stream has been waited for only. Whatever the lengths are, nothing beside it is accessed.
        unsafe { self.call.enqueue(stream) }?;
        Ok(())
    }

    /// Enqueues, waits, and reads the output.
    pub fn run(&self, stream: &Stream) -> Result<Vec<Output<T>>, Failure> {
        self.enqueue(stream)?;
        stream.wait(|| self.ragged.text())?;
        self.outputs()
    }

    /// The same by a call for each query head, and for each batch entry of padded queries, into the same memory.
    pub fn run_heads_alone(&self, stream: &Stream) -> Result<Vec<Output<T>>, Failure> {
        for call in self.call.heads_alone()? {
            // SAFETY: as in `enqueue`; each call reads and writes part of what the whole one does.
            unsafe { call.enqueue(stream) }?;
        }
        stream.wait(|| self.ragged.text())?;
        self.outputs()
    }

    /// Poisons the output once more.
    pub fn poison_output(&self) -> Result<(), Failure> {
        self.output.poison()
    }

    /// Reads the output of each sequence; fails if an element was not written, or one that is not part of it was.
    pub fn outputs(&self) -> Result<Vec<Output<T>>, Failure> {
        let (mut o, mut lse) = (self.output.o.read::<u16>()?, self.output.lse.as_ref().map(Guarded::read::<u32>).transpose()?);
        let places = self.ragged.q_places();
        let mut outputs = Vec::new();
        for (index, (&(entry, start), &len)) in places.starts.iter().zip(&places.lengths).enumerate() {
            let rows = start..start + len;
            let o = self.take_o(&mut o, entry, rows.clone()).map_err(|failure| failure.during(format!("sequence {index}")))?;
            let lse = lse.as_mut().map(|lse| self.take_lse(lse, entry, rows)).transpose();
            outputs.push(Output { o, lse: lse.map_err(|failure| failure.during(format!("sequence {index}")))? });
        }
        let stray = o.iter().position(|&bits| bits != POISON);
        ensure!(stray.is_none(), "O was written to where no query is, {stray:?} elements from its start");
        let stray = lse.iter().flatten().position(|&bits| bits != POISON_PAIR);
        ensure!(stray.is_none(), "LSE was written to where no query is, number {stray:?}");
        Ok(outputs)
    }

    /// The rows of one sequence, contiguous `[len, heads, head_dim_v]`, out of the image of O, which has poison there from now on.
    fn take_o(&self, image: &mut [u16], entry: usize, rows: std::ops::Range<usize>) -> Result<Vec<T>, Failure> {
        let Layout { shape: [.., heads, head_dim_v], strides: [entry_stride, row_stride, head_stride] } = self.call.o.layout;
        let mut o = Vec::new();
        for (row, head_idx) in rows.flat_map(|row| (0..heads).map(move |head_idx| (row, head_idx))) {
            let start = entry * entry_stride + row * row_stride + head_idx * head_stride;
            let written = &mut image[start..start + head_dim_v];
            let missing = written.iter().position(|&bits| bits == POISON);
            ensure!(missing.is_none(), "O was not written in row {row}, head {head_idx}, column {missing:?}");
            o.extend_from_slice(bytemuck::cast_slice::<u16, T>(written));
            written.fill(POISON);
        }
        Ok(o)
    }

    /// The log-sum-exp of one sequence, `[heads, len]`, likewise.
    fn take_lse(&self, image: &mut [u32], entry: usize, rows: std::ops::Range<usize>) -> Result<Vec<f32>, Failure> {
        let [_, seqlen, heads, _] = self.call.o.layout.shape;
        let mut lse = Vec::new();
        for head_idx in 0..heads {
            for row in rows.clone() {
                let written = &mut image[(entry * heads + head_idx) * seqlen + row];
                ensure!(*written != POISON_PAIR, "LSE was not written in row {row}, head {head_idx}");
                lse.push(f32::from_bits(*written));
                *written = POISON_PAIR;
            }
        }
        Ok(lse)
    }

    /// Fails if O was written to between its rows, whichever of them were written.
    pub fn check_gaps(&self) -> Result<(), Failure> {
        let mut image: Vec<u16> = self.output.o.read()?;
        let [_, _, _, head_dim_v] = self.call.o.layout.shape;
        for start in crate::placement::row_starts(&self.call.o.layout, self.call.o.layout.shape) {
            image[start..start + head_dim_v].fill(POISON);
        }
        let stray = image.iter().position(|&bits| bits != POISON);
        ensure!(stray.is_none(), "a gap of O was written to, {stray:?} elements from its start");
        Ok(())
    }

    /// Fails unless the output is still poison: nothing ran.
    pub fn check_untouched(&self) -> Result<(), Failure> {
        self.output.check_untouched()?;
        self.check_surroundings()
    }

    /// Fails if an input or a guard was written to.
    pub fn check_surroundings(&self) -> Result<(), Failure> {
        self.stored.iter().try_for_each(Stored::check_unchanged)?;
        self.per_head.iter().chain(&self.lengths).try_for_each(Stored::check_unchanged)?;
        self.tables.iter().try_for_each(Tables::check_unchanged)?;
        self.output.check_guards()
    }
}

/// The arrays of lengths that there are.
fn lengths_of(q: &Places, k: &Places) -> impl Iterator<Item = (&'static str, Vec<i32>)> {
    let all = [("cu_seqlens_q", &q.cu_seqlens), ("cu_seqlens_k", &k.cu_seqlens), ("seqused_q", &q.seqused), ("seqused_k", &k.seqused)];
    all.map(|(name, values)| values.clone().map(|values| (name, values))).into_iter().flatten()
}

fn store_lengths(q: &Places, k: &Places, arrays: &mut raw::Arrays) -> Result<Vec<Numbers>, Failure> {
    let mut memory = Vec::new();
    for (name, values) in lengths_of(q, k) {
        let stored = Stored::new(name, values.iter().map(|&value| value as u32).collect(), 3)?;
        let array = Some(stored.array(values.len()));
        match name {
            "cu_seqlens_q" => arrays.cu_seqlens_q = array,
            "cu_seqlens_k" => arrays.cu_seqlens_k = array,
            "seqused_q" => arrays.seqused_q = array,
            _ => arrays.seqused_k = array,
        }
        memory.push(stored);
    }
    Ok(memory)
}

/// Names, contents and offsets of the tensors' memory, and their layouts: Q, K and V, or one that holds all three.
type Images<T> = (Vec<(&'static str, Vec<T>, usize)>, Vec<Layout>);

fn images<T: TestElement>(ragged: &Ragged, inputs: &[Inputs<T>]) -> Result<Images<T>, Failure> {
    let case = &ragged.case;
    let (q_places, k_places) = (ragged.q_places(), ragged.k_places());
    let (heads, heads_k, head_dim) = (case.num_heads, case.num_heads_k, case.head_dim);
    let rows = |of: fn(&Inputs<T>) -> &Vec<T>| inputs.iter().flat_map(|inputs| of(inputs).iter().copied()).collect::<Vec<T>>();
    let (q, k, v) = (rows(|inputs| &inputs.q), rows(|inputs| &inputs.k), rows(|inputs| &inputs.v));
    let operands = [
        ("q", &q, &q_places, &case.q, heads, head_dim),
        ("k", &k, &k_places, &case.k, heads_k, head_dim),
        ("v", &v, &k_places, &case.v, heads_k, case.o_head_dim()),
    ];
    let (mut images, mut layouts) = (Vec::new(), Vec::new());
    if case.packed {
        let alike = q_places == k_places && case.o_head_dim() == head_dim;
        ensure!(alike, "a packed QKV has as many queries as keys, and one head_dim: {}", ragged.text());
        let mut image = Image::new(&case.q, [q_places.extents[0], q_places.extents[1], heads + 2 * heads_k, head_dim])?;
        let mut first_head = 0;
        for (_, data, places, _, heads, _) in operands {
            image.write(data, places, first_head..first_head + heads);
            first_head += heads;
        }
        layouts.push(image.layout);
        images.push(("qkv", image.data, case.q.offset));
        return Ok((images, layouts));
    }
    for (name, data, places, placement, heads, head_dim) in operands {
        let mut image = Image::new(placement, [places.extents[0], places.extents[1], heads, head_dim])?;
        image.write(data, places, 0..placement.stored([1, 1, heads, head_dim])[2]);
        layouts.push(image.layout);
        images.push((name, image.data, placement.offset));
    }
    Ok((images, layouts))
}

/// The memory of a tensor.
struct Image<T> {
    layout: Layout,
    data: Vec<T>,
}

impl<T: TestElement> Image<T> {
    /// Rows of NaN and of 10^30, which is infinite in f16, in turns.
    fn new(placement: &Placement, shape: [usize; 4]) -> Result<Self, Failure> {
        let layout = placement.layout(shape);
        let sentinel = |i: usize| T::from_f32(if (i / shape[3]).is_multiple_of(2) { f32::NAN } else { 1e30 });
        Ok(Self { layout, data: (0..span(&layout)?).map(sentinel).collect() })
    }

    /// Puts `data`, contiguous `[rows that count, heads, head_dim]`, to its places.
    fn write(&mut self, data: &[T], places: &Places, heads: std::ops::Range<usize>) {
        let Layout { shape: [.., head_dim], strides: [entry_stride, row_stride, head_stride] } = self.layout;
        let rows = places.rows().flat_map(|(entry, row)| heads.clone().map(move |head_idx| (entry, row, head_idx)));
        for ((entry, row, head_idx), values) in rows.zip(data.chunks_exact(head_dim)) {
            let start = entry * entry_stride + row * row_stride + head_idx * head_stride;
            self.data[start..start + head_dim].copy_from_slice(values);
        }
    }
}
