//! A cell's tensors, its forward pass through the library, and whether the result is right.

use hopper_attention::reference::{HostTensor, Row, exact};
use hopper_attention::{Dim, Element, Layout, raw};
use hopper_attention_tests::{Call, ElementType};

use crate::Result;
use crate::cells::{Cell, MemoryOrder};
use crate::gpu::{Buffer, Gpu};
use crate::random::{mix, normal};

const SAMPLED_ROWS: usize = 64;
const LSE_TOLERANCE: f64 = 1e-3;

/// What a row of O may be off by, as a share of its norm. Rounding P and O gives 2e-3 in bf16, 3e-4 in f16.
fn row_tolerance(dtype: ElementType) -> f64 {
    match dtype {
        ElementType::Bf16 => 6e-3,
        ElementType::F16 => 1e-3,
    }
}

/// Where Q, K and V lie: an index into the buffers, an offset in elements, a layout.
type View = (usize, usize, Layout);

/// A cell on the device, with a copy of its inputs on the host.
pub struct Problem<T> {
    cell: Cell,
    views: [View; 3],
    o_layout: Layout,
    host: Vec<Vec<T>>,
    device: Vec<Buffer>,
    o: Buffer,
    lse: Buffer,
}

/// How far the sampled rows are from the float64 reference.
#[derive(Clone, Copy, Debug)]
pub struct Errors {
    pub max_abs: f64,
    /// Largest error of a row as a share of its norm.
    pub max_row: f64,
    pub max_lse: f64,
}

impl<T: Element> Problem<T> {
    pub fn new(gpu: &Gpu, cell: &Cell, seed: u64) -> Result<Self> {
        let (views, lens) = input_views(cell)?;
        let host: Vec<Vec<T>> = lens.iter().zip(1..).map(|(&len, i)| normal(len, mix(seed.wrapping_add(i)))).collect();
        let device = host.iter().map(|data| Buffer::from_slice(gpu, data)).collect::<Result<_>>()?;
        let o_layout = contiguous(cell, cell.seqlen_q, cell.num_heads);
        let o = Buffer::poisoned(gpu, elements(&o_layout)? * size_of::<T>())?;
        let lse = Buffer::poisoned(gpu, (cell.batch * cell.num_heads * cell.seqlen_q) as usize * size_of::<f32>())?;
        Ok(Self { cell: *cell, views, o_layout, host, device, o, lse })
    }

    /// A function that enqueues one forward pass.
    pub fn forward(&self, gpu: &Gpu) -> impl FnMut() -> Result<()> {
        self.forward_with(gpu, raw::Options::new())
    }

    /// The same, with further options.
    pub fn forward_with(&self, gpu: &Gpu, options: raw::Options) -> impl FnMut() -> Result<()> {
        let Call { q, k, v, o, lse, options, .. } = self.call(options);
        let stream = gpu.stream;
        // SAFETY: the buffers hold what the layouts span, only this stream uses them, and freeing them waits for the work.
        move || Ok(unsafe { raw::forward(&q, &k, &v, &o, lse, &options, stream) }?)
    }

    /// What a forward pass is called with.
    pub fn call(&self, options: raw::Options) -> Call {
        let tensor = |(buffer, offset, layout): View| {
            let address = self.device[buffer].address + (offset * size_of::<T>()) as u64;
            raw::Tensor4 { address, dtype: T::DTYPE, layout }
        };
        let [q, k, v] = self.views.map(tensor);
        let o = raw::Tensor4 { address: self.o.address, dtype: T::DTYPE, layout: self.o_layout };
        let lse = raw::Lse { address: self.lse.address, len: (self.cell.batch * self.cell.num_heads * self.cell.seqlen_q) as usize };
        let options = options.causal(self.cell.causal);
        Call { q, k, v, o, lse: Some(lse), options, arrays: raw::Arrays::new(), custom: None }
    }

    /// Makes what no kernel writes show once more. The stream must be empty.
    pub fn poison_output(&self) -> Result<()> {
        self.o.poison()?;
        self.lse.poison()
    }

    /// Compares the last result with float64. The stream must be empty.
    pub fn check(&self, seed: u64) -> Result<Errors> {
        let o: Vec<T> = self.o.to_vec()?;
        let lse: Vec<f32> = self.lse.to_vec()?;
        if let Some(at) = o.iter().position(|x| !x.to_f32().is_finite()) {
            return Err(format!("wrong result: element {at} of O is missing or not finite").into());
        }
        let rows = self.sampled_rows(seed);
        let [q, k, v] = self.views.map(|(buffer, offset, layout)| HostTensor::new(&self.host[buffer][offset..], layout));
        let reference = exact::attention_rows(&hopper_attention::reference::Problem::new(q?, k?, v?)?.causal(self.cell.causal), &rows);
        let o = HostTensor::new(&o, self.o_layout)?;
        let mut errors = Errors { max_abs: 0.0, max_row: 0.0, max_lse: 0.0 };
        for ((row, expected), expected_lse) in rows.iter().zip(reference.o.chunks_exact(self.cell.head_dim as usize)).zip(&reference.lse) {
            let differences: Vec<f64> =
                o.row(row.batch_idx, row.position, row.head_idx).iter().zip(expected).map(|(x, y)| f64::from(x.to_f32()) - y).collect();
            errors.max_abs = differences.iter().fold(errors.max_abs, |max, x| max.max(x.abs()));
            errors.max_row = errors.max_row.max(norm(&differences) / norm(expected));
            let at = (row.batch_idx * self.cell.num_heads as usize + row.head_idx) * self.cell.seqlen_q as usize + row.position;
            let lse_error = (f64::from(lse[at]) - expected_lse).abs();
            if lse_error.is_nan() || lse_error > LSE_TOLERANCE {
                return Err(format!("wrong result: the log-sum-exp is off by {lse_error:.1e}").into());
            }
            errors.max_lse = errors.max_lse.max(lse_error);
        }
        if errors.max_row > row_tolerance(self.cell.dtype) {
            return Err(format!("wrong result: a row is off by {:.1e} of its norm (float64 reference)", errors.max_row).into());
        }
        Ok(errors)
    }

    /// The first row, the last, and random ones.
    fn sampled_rows(&self, seed: u64) -> Vec<Row> {
        let [batch, positions, heads] = [self.cell.batch, self.cell.seqlen_q, self.cell.num_heads].map(|extent| extent as usize);
        let mut rows = vec![
            Row { batch_idx: 0, head_idx: 0, position: 0 },
            Row { batch_idx: batch - 1, head_idx: heads - 1, position: positions - 1 },
        ];
        rows.extend((1..).take(SAMPLED_ROWS - 2).map(|i| {
            let bits = mix(seed ^ mix(i)) as usize >> 1;
            Row { batch_idx: bits % batch, head_idx: bits / batch % heads, position: bits / batch / heads % positions }
        }));
        rows
    }
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn elements(layout: &Layout) -> Result<usize> {
    Ok(layout.elements().ok_or("more elements than a usize counts")?)
}

fn contiguous(cell: &Cell, seqlen: u64, heads: u64) -> Layout {
    let shape = [cell.batch, seqlen, heads, cell.head_dim].map(|extent| extent as usize);
    match cell.layout {
        MemoryOrder::Bhsd => Layout::bhsd(shape),
        MemoryOrder::Bshd | MemoryOrder::Packed => Layout::bshd(shape),
    }
}

/// Views of Q, K and V, and the lengths of the buffers that they point into.
fn input_views(cell: &Cell) -> Result<([View; 3], Vec<usize>)> {
    if cell.layout == MemoryOrder::Packed {
        let heads = cell.num_heads as usize;
        let packed = contiguous(cell, cell.seqlen_q, 3 * cell.num_heads);
        let slice = |part: usize| packed.slice(Dim::Heads, part * heads..(part + 1) * heads).map(|(offset, layout)| (0, offset, layout));
        return Ok(([slice(0)?, slice(1)?, slice(2)?], vec![elements(&packed)?]));
    }
    let q = contiguous(cell, cell.seqlen_q, cell.num_heads);
    let kv = contiguous(cell, cell.seqlen_k, cell.num_heads_k);
    Ok(([(0, 0, q), (1, 0, kv), (2, 0, kv)], vec![elements(&q)?, elements(&kv)?, elements(&kv)?]))
}
