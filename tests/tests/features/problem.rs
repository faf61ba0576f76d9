//! A batch of sequences, each of lengths of its own, on the device and by definition.
//!
//! Each side, queries and keys, lies in memory in one of three ways ([`Side`]). What belongs to no sequence is NaN in Q, K and V, and must not
//! be written in O and LSE. Every sequence is judged by itself: a row's element may be off by twice the largest error of `tiled`, which computes in
//! the kernel's precision on the CPU, and the rounding of O.

use hopper_attention::reference::{Attention, HostTensor, Problem, exact, tiled};
use hopper_attention::{Layout, raw};
use hopper_attention_tests::gpu::{Guarded, POISON, Stream};
use hopper_attention_tests::{Failure, TestElement, ensure, random_bits};

/// How the sequences of Q and O, or of K and V, lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    /// `[batch, seqlen, heads, head_dim]`; all sequences are equally long.
    Dense,
    /// `[batch, capacity, heads, head_dim]`, of which `seqused` says how many rows count.
    Padded { capacity: usize },
    /// `[1, total, heads, head_dim]`, some rows before the first and behind the last sequence; of each segment the last `spare` rows count for
    /// nothing, which `seqused` says.
    Packed { spare: usize },
}

/// Rows before the first and behind the last sequence of a packed tensor.
const MARGIN: usize = 3;

#[derive(Clone, Debug)]
pub struct Batch {
    pub heads: usize,
    pub heads_k: usize,
    pub head_dim: usize,
    pub head_dim_v: usize,
    /// Queries and keys of each sequence.
    pub lengths: Vec<(usize, usize)>,
    pub q: Side,
    pub k: Side,
    pub causal: bool,
    pub window: (Option<usize>, Option<usize>),
    pub softcap: Option<f32>,
    pub slopes: Option<Vec<f32>>,
    pub sinks: Option<Vec<f32>>,
    /// Factor of Q, to reach larger logits.
    pub magnitude: f32,
    pub seed: u64,
}

impl Batch {
    /// `lengths` as dense tensors, without anything else.
    pub fn new(head_dim: usize, lengths: &[(usize, usize)]) -> Self {
        Self {
            heads: 2,
            heads_k: 1,
            head_dim,
            head_dim_v: head_dim,
            lengths: lengths.to_vec(),
            q: Side::Dense,
            k: Side::Dense,
            causal: false,
            window: (None, None),
            softcap: None,
            slopes: None,
            sinks: None,
            magnitude: 1.0,
            seed: 1,
        }
    }

    /// Both sides packed, without spare rows.
    pub fn packed(head_dim: usize, lengths: &[(usize, usize)]) -> Self {
        Self { q: Side::Packed { spare: 0 }, k: Side::Packed { spare: 0 }, ..Self::new(head_dim, lengths) }
    }

    fn options(&self) -> raw::Options {
        let mut options = raw::Options::new().causal(self.causal).window(self.window.0, self.window.1);
        options.softcap = self.softcap;
        options
    }

    fn rows(&self, of_keys: bool) -> Rows {
        let lengths: Vec<usize> = self.lengths.iter().map(|&(q, k)| if of_keys { k } else { q }).collect();
        Rows::new(if of_keys { self.k } else { self.q }, &lengths)
    }

    /// One sequence by definition, and in the kernel's precision.
    fn expected<T: TestElement>(&self, inputs: &Inputs<T>, sequence: usize) -> Result<Expected<T>, Failure> {
        let (len_q, len_k) = self.lengths[sequence];
        let layout = |len, heads, head_dim| Layout::bshd([1, len, heads, head_dim]);
        let part = |data: &[T], rows: &Rows, len: usize, row: usize| {
            data[rows.starts[sequence] * row..(rows.starts[sequence] + len) * row].to_vec()
        };
        let q = part(&inputs.q, &inputs.q_rows, len_q, self.heads * self.head_dim);
        let k = part(&inputs.k, &inputs.k_rows, len_k, self.heads_k * self.head_dim);
        let v = part(&inputs.v, &inputs.k_rows, len_k, self.heads_k * self.head_dim_v);
        let mut problem = Problem::new(
            HostTensor::new(&q, layout(len_q, self.heads, self.head_dim))?,
            HostTensor::new(&k, layout(len_k, self.heads_k, self.head_dim))?,
            HostTensor::new(&v, layout(len_k, self.heads_k, self.head_dim_v))?,
        )?;
        problem = problem.causal(self.causal).window(self.window.0, self.window.1);
        if let Some(softcap) = self.softcap {
            problem = problem.softcap(softcap)?;
        }
        if let Some(slopes) = &self.slopes {
            problem = problem.alibi_slopes(slopes)?;
        }
        if let Some(sinks) = &self.sinks {
            problem = problem.sinks(sinks)?;
        }
        Ok(Expected { exact: exact::attention(&problem), tiled: tiled::attention(&problem)? })
    }
}

/// One sequence by definition, and in the kernel's precision.
struct Expected<T> {
    exact: Attention<f64, f64>,
    tiled: Attention<T, f32>,
}

/// Where the rows of each sequence are.
#[derive(Clone, Debug)]
pub struct Rows {
    /// First row of each sequence, counted through the whole tensor.
    pub starts: Vec<usize>,
    /// `[batch, rows]` of the tensor.
    pub extents: [usize; 2],
    pub cu_seqlens: Option<Vec<i32>>,
    pub seqused: Option<Vec<i32>>,
}

impl Rows {
    fn new(side: Side, lengths: &[usize]) -> Self {
        let batch = lengths.len();
        let used = lengths.iter().map(|&len| len as i32).collect();
        match side {
            Side::Dense => {
                let len = lengths.first().copied().unwrap_or(0);
                assert!(lengths.iter().all(|&other| other == len), "dense sequences are equally long");
                Self { starts: (0..batch).map(|b| b * len).collect(), extents: [batch, len], cu_seqlens: None, seqused: None }
            }
            Side::Padded { capacity } => {
                let starts = (0..batch).map(|b| b * capacity).collect();
                Self { starts, extents: [batch, capacity], cu_seqlens: None, seqused: Some(used) }
            }
            Side::Packed { spare } => {
                let mut starts = vec![MARGIN];
                lengths.iter().for_each(|len| starts.push(starts[starts.len() - 1] + len + spare));
                let cu_seqlens = starts.iter().map(|&start| start as i32).collect();
                let total = starts.pop().unwrap_or(MARGIN) + MARGIN;
                Self { starts, extents: [1, total], cu_seqlens: Some(cu_seqlens), seqused: (spare > 0).then_some(used) }
            }
        }
    }

    fn total(&self) -> usize {
        self.extents[0] * self.extents[1]
    }

    /// The sequence and position of a row, if it belongs to any.
    fn owner(&self, row: usize, lengths: impl Fn(usize) -> usize) -> Option<(usize, usize)> {
        (0..self.starts.len()).find_map(|sequence| {
            let position = row.checked_sub(self.starts[sequence])?;
            (position < lengths(sequence)).then_some((sequence, position))
        })
    }
}

/// Q, K and V, NaN where a row belongs to no sequence.
pub struct Inputs<T> {
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    pub q_rows: Rows,
    pub k_rows: Rows,
}

impl<T: TestElement> Inputs<T> {
    pub fn draw(batch: &Batch) -> Self {
        let (q_rows, k_rows) = (batch.rows(false), batch.rows(true));
        let tensor = |rows: &Rows, of_keys: bool, row_elements: usize, seed: u64, factor: f32| {
            let mut data = Vec::with_capacity(rows.total() * row_elements);
            for row in 0..rows.total() {
                let length = |b: usize| if of_keys { batch.lengths[b].1 } else { batch.lengths[b].0 };
                let owned = rows.owner(row, length).is_some();
                data.extend((0..row_elements).map(|column| {
                    let bits = random_bits(batch.seed * 8 + seed, (row * row_elements + column) as u64);
                    T::from_f32(if owned { factor * ((bits >> 40) as f32 / (1 << 23) as f32 - 1.0) } else { f32::NAN })
                }));
            }
            data
        };
        Self {
            q: tensor(&q_rows, false, batch.heads * batch.head_dim, 0, 2.0 * batch.magnitude),
            k: tensor(&k_rows, true, batch.heads_k * batch.head_dim, 1, 2.0),
            v: tensor(&k_rows, true, batch.heads_k * batch.head_dim_v, 2, 1.0),
            q_rows,
            k_rows,
        }
    }
}

/// An array of 4-byte numbers in guarded device memory.
pub struct DeviceArray(Guarded, usize);

impl DeviceArray {
    pub fn new<N: bytemuck::NoUninit>(values: &[N]) -> Result<Self, Failure> {
        let memory = Guarded::new(size_of_val(values), 0)?;
        memory.write(values)?;
        Ok(Self(memory, values.len()))
    }

    pub fn raw(&self) -> raw::Array {
        raw::Array { address: self.0.address(), len: self.1 }
    }

    pub fn write<N: bytemuck::NoUninit>(&self, values: &[N]) -> Result<(), Failure> {
        self.0.write(values)
    }
}

/// A batch in device memory.
pub struct OnDevice<T> {
    pub batch: Batch,
    pub inputs: Inputs<T>,
    pub tensors: [raw::Tensor4; 4],
    pub lse: raw::Lse,
    pub arrays: raw::Arrays,
    memory: [Guarded; 5],
    pub cu_seqlens: [Option<DeviceArray>; 2],
    _seqused: [Option<DeviceArray>; 2],
    _per_head: [Option<DeviceArray>; 2],
}

impl<T: TestElement> OnDevice<T> {
    pub fn new(batch: &Batch) -> Result<Self, Failure> {
        let inputs = Inputs::<T>::draw(batch);
        let place = |data: &[T]| -> Result<Guarded, Failure> {
            let memory = Guarded::new(size_of_val(data), 0)?;
            memory.write(data)?;
            Ok(memory)
        };
        let q_total = inputs.q_rows.total();
        let memory = [
            place(&inputs.q)?,
            place(&inputs.k)?,
            place(&inputs.v)?,
            Guarded::new(2 * q_total * batch.heads * batch.head_dim_v, 0)?,
            Guarded::new(4 * q_total * batch.heads, 0)?,
        ];
        let tensor = |memory: &Guarded, rows: &Rows, heads, head_dim| {
            let layout = Layout::bshd([rows.extents[0], rows.extents[1], heads, head_dim]);
            raw::Tensor4 { address: memory.address(), dtype: T::DTYPE, layout }
        };
        let tensors = [
            tensor(&memory[0], &inputs.q_rows, batch.heads, batch.head_dim),
            tensor(&memory[1], &inputs.k_rows, batch.heads_k, batch.head_dim),
            tensor(&memory[2], &inputs.k_rows, batch.heads_k, batch.head_dim_v),
            tensor(&memory[3], &inputs.q_rows, batch.heads, batch.head_dim_v),
        ];
        let array = |values: &Option<Vec<i32>>| values.as_deref().map(DeviceArray::new).transpose();
        let per_head = |values: &Option<Vec<f32>>| values.as_deref().map(DeviceArray::new).transpose();
        let cu_seqlens = [array(&inputs.q_rows.cu_seqlens)?, array(&inputs.k_rows.cu_seqlens)?];
        let seqused = [array(&inputs.q_rows.seqused)?, array(&inputs.k_rows.seqused)?];
        let per_head = [per_head(&batch.sinks)?, per_head(&batch.slopes)?];
        let mut arrays = raw::Arrays::new();
        let raw = |array: &Option<DeviceArray>| array.as_ref().map(DeviceArray::raw);
        (arrays.cu_seqlens_q, arrays.cu_seqlens_k) = (raw(&cu_seqlens[0]), raw(&cu_seqlens[1]));
        (arrays.seqused_q, arrays.seqused_k) = (raw(&seqused[0]), raw(&seqused[1]));
        (arrays.sinks, arrays.alibi_slopes) = (raw(&per_head[0]), raw(&per_head[1]));
        let lse = raw::Lse { address: memory[4].address(), len: q_total * batch.heads };
        Ok(Self { batch: batch.clone(), inputs, tensors, lse, arrays, memory, cu_seqlens, _seqused: seqused, _per_head: per_head })
    }

    pub fn enqueue(&self, stream: &Stream) -> Result<(), Failure> {
        let [q, k, v, o] = &self.tensors;
        // SAFETY: all of it lies in memory of this value, which frees it no sooner than the device is done with it (cuMemFree waits).
        unsafe { raw::forward_with(q, k, v, o, Some(self.lse), &self.batch.options(), &self.arrays, stream.raw())? };
        Ok(())
    }

    /// Poisons O and LSE once more.
    pub fn poison(&self) -> Result<(), Failure> {
        self.memory[3].poison()?;
        self.memory[4].poison()
    }

    /// O and LSE as they lie in memory.
    pub fn output(&self) -> Result<(Vec<T>, Vec<f32>), Failure> {
        for (memory, name) in self.memory.iter().zip(["q", "k", "v", "o", "lse"]) {
            memory.check_guards(name)?;
        }
        Ok((self.memory[3].read()?, self.memory[4].read()?))
    }

    /// Judges what is in O and LSE, for the lengths of `batch`.
    pub fn judge(&self) -> Result<(), Failure> {
        self.judge_within(0.0)
    }

    /// The same, where an element of O may be off by `slack` more.
    pub fn judge_within(&self, slack: f64) -> Result<(), Failure> {
        let (o, lse) = self.output()?;
        let (batch, rows) = (&self.batch, &self.inputs.q_rows);
        let row_elements = batch.heads * batch.head_dim_v;
        let poison = |bits: u16| bits == POISON;
        let mut expected = Vec::new();
        for sequence in 0..batch.lengths.len() {
            expected.push(if batch.lengths[sequence].0 > 0 { Some(batch.expected(&self.inputs, sequence)?) } else { None });
        }
        for row in 0..rows.total() {
            let o = &o[row * row_elements..(row + 1) * row_elements];
            let lse = |head: usize| lse[self.lse_index(row, head)];
            let Some((sequence, position)) = rows.owner(row, |b| batch.lengths[b].0) else {
                ensure!(
                    bytemuck::cast_slice::<T, u16>(o).iter().all(|&bits| poison(bits)),
                    "O was written in row {row}, which is no query"
                );
                let untouched = (0..batch.heads).all(|head| lse(head).to_bits() == u32::from(POISON) << 16 | u32::from(POISON));
                ensure!(untouched, "LSE was written in row {row}, which is no query");
                continue;
            };
            let expected = expected[sequence].as_ref().expect("a row's sequence has queries");
            let at = format!("sequence {sequence}, query {position}");
            self.judge_row(o, &lse, expected, (sequence, position), slack).map_err(|failure| failure.during(at))?;
        }
        Ok(())
    }

    /// Packed: `[heads, total]`; else `[batch, heads, rows]`.
    fn lse_index(&self, row: usize, head: usize) -> usize {
        let [_, len] = self.inputs.q_rows.extents;
        (row / len * self.batch.heads + head) * len + row % len
    }

    fn judge_row(
        &self,
        o: &[T],
        lse: &dyn Fn(usize) -> f32,
        Expected { exact, tiled }: &Expected<T>,
        (sequence, position): (usize, usize),
        slack: f64,
    ) -> Result<(), Failure> {
        let batch = &self.batch;
        let (len_q, len_k) = batch.lengths[sequence];
        let differences = exact.o.iter().zip(&tiled.o).map(|(exact, tiled)| (f64::from(tiled.to_f32()) - exact).abs());
        let same_precision = differences.fold(0.0, f64::max);
        ensure!(same_precision < 0.05, "the kernel's precision is off by {same_precision:e}: the case shows nothing");
        // What tanh.approx may be off by, beyond what `tiled` models; sums of the tensor core, cut off.
        let tanh = f64::from(batch.softcap.unwrap_or(0.0)) * tiled::TANH_ERROR;
        let sums = 1e-5 + 1e-6 * f64::from(batch.magnitude) * batch.head_dim as f64;
        for (column, (o, exact)) in o.iter().zip(&exact.o[position * o.len()..]).enumerate() {
            let (o, allowed) =
                (f64::from(o.to_f32()), 2.0 * same_precision + T::EPSILON / 2.0 * exact.abs() + sums + tanh.min(0.02) + slack);
            ensure!((o - exact).abs() <= allowed, "O is {o} in column {column}, but must be {exact} within {allowed:e}");
        }
        for head in 0..batch.heads {
            let (lse, exact) = (lse(head), exact.lse[head * len_q + position]);
            let right = if exact.is_finite() {
                (f64::from(lse) - exact).abs() <= 1e-6 * (exact.abs() + (len_k as f64).ln_1p()) + 10.0 * sums + tanh
            } else {
                f64::from(lse) == exact
            };
            ensure!(right, "LSE of head {head} is {lse}, but must be {exact}");
        }
        Ok(())
    }
}

/// Computes and judges.
pub fn check<T: TestElement>(batch: &Batch) -> Result<(), Failure> {
    let again = |failure: Failure| failure.during(format!("{batch:?} in {}", T::DTYPE.name()));
    let on_device = OnDevice::<T>::new(batch).map_err(again)?;
    let stream = Stream::new()?;
    on_device.enqueue(&stream).map_err(again)?;
    stream.wait(|| format!("{batch:?}"))?;
    on_device.judge().map_err(again)
}
