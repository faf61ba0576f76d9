//! `wgmma`: D = A B + D for the 64 rows of a warpgroup (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").
//!
//! Element `i` of a thread's accumulators is row `16 w + lane/4 + 8 (i/2 % 2)`, column `8 (i/4) + 2 (lane % 4) + i % 2`. The layouts of shared
//! memory are those of the matrix descriptor: K-major, where a row of K lies together, or MN-major ("transposed"), where a column does; each
//! plain or with one of three swizzles.

use std::collections::VecDeque;

use half::bf16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::cta::{Cta, Flow};
use super::fault::{Fault, FaultKind, Step};
use super::observer::{AccessKind, Agent, AsyncKind, Observer};
use super::warp::{FULL, LANES, Wait, Warp};
use crate::lower::op::{MatrixA, MatrixType, Op, Wgmma};

/// A product that at least one warp of its warpgroup has issued.
#[derive(Clone, Debug)]
struct Product {
    pc: u32,
    a_descriptor: u64,
    b_descriptor: u64,
    scale_d: bool,
    /// A bit for each warp that has issued it.
    issued: u32,
}

/// The products of a warpgroup, in order.
#[derive(Debug, Default)]
pub struct Warpgroup {
    queue: VecDeque<Product>,
    /// Products that are over.
    pub done: u64,
}

impl Warpgroup {
    /// Whether the next product can be executed: all four warps have issued it.
    pub fn is_ready(&self) -> bool {
        self.queue.front().is_some_and(|product| product.issued == 0xf)
    }
}

/// The number under which observers know a product.
pub fn product_op(warpgroup: u32, number: u64) -> u64 {
    1 << 63 | u64::from(warpgroup) << 48 | number
}

/// A matrix descriptor.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    start: u32,
    leading: u32,
    stride: u32,
    base_offset: u32,
    /// Bytes of a swizzled row: 16 without swizzle.
    span: u32,
}

impl Descriptor {
    fn decode(bits: u64) -> Self {
        let field = |at: u32, width: u32| (bits >> at & ((1 << width) - 1)) as u32;
        Self {
            start: field(0, 14) << 4,
            leading: field(16, 14) << 4,
            stride: field(32, 14) << 4,
            base_offset: field(49, 3),
            span: [16, 128, 64, 32][field(62, 2) as usize],
        }
    }

    fn swizzle(&self, address: u32) -> u32 {
        let mask = self.span / 16 - 1;
        address ^ (((address >> 7).wrapping_sub(self.base_offset) & mask) << 4)
    }

    /// Address of the 16-byte chunk `chunk` (0 or 1) of row `row`, K-major.
    fn k_major(&self, row: u32, chunk: u32) -> u32 {
        let (pitch, step) = if self.span == 16 { (16, self.leading) } else { (self.span, 16) };
        self.swizzle(self.start + row % 8 * pitch + row / 8 * self.stride + chunk * step)
    }

    /// Address of the 16 bytes at depth `k` for the rows from `8 octet`, MN-major.
    fn mn_major(&self, octet: u32, k: u32) -> u32 {
        if self.span == 16 {
            return self.start + k % 8 * 16 + octet * self.stride + k / 8 * self.leading;
        }
        let chunks = self.span / 16;
        self.swizzle(self.start + octet % chunks * 16 + octet / chunks * self.leading + k % 8 * self.span + k / 8 * self.stride)
    }
}

impl<'a, O: Observer> Cta<'a, O> {
    pub(super) fn issue_product(&mut self, warp: &mut Warp, product: &Wgmma, mask: u32) -> Step<()> {
        self.require_converged(warp, mask)?;
        let group = warp.index / 4;
        if mask != FULL || (self.warps.len() as u32) < group * 4 + 4 {
            return Err(self.lane_fault(FaultKind::Protocol, "a product needs the 128 threads of a warpgroup", warp, mask));
        }
        let uniform = |slot: u32| {
            let value = warp.doubles[slot as usize];
            value.iter().all(|x| *x == value[0]).then_some(value[0])
        };
        let a_descriptor = match product.a {
            MatrixA::Shared { descriptor, .. } => uniform(descriptor),
            MatrixA::Registers(_) => Some(0),
        };
        let scale = warp.preds[product.scale_d as usize] ^ if product.scale_d_negated { FULL } else { 0 };
        let (Some(a_descriptor), Some(b_descriptor), true) = (a_descriptor, uniform(product.b_descriptor), scale == 0 || scale == FULL)
        else {
            return Err(self.lane_fault(FaultKind::Protocol, "a descriptor or scale-d differs between the lanes of a warp", warp, mask));
        };
        let issued = Product { pc: self.pc, a_descriptor, b_descriptor, scale_d: scale == FULL, issued: 1 << (warp.index % 4) };
        let number = warp.products.issued;
        let queue = &mut self.warpgroups[group as usize];
        let at = (number - queue.done) as usize;
        if let Some(other) = queue.queue.get_mut(at) {
            let same = (other.pc, other.a_descriptor, other.b_descriptor, other.scale_d)
                == (issued.pc, issued.a_descriptor, issued.b_descriptor, issued.scale_d);
            if !same {
                let line = self.kernel.code[other.pc as usize].span.line;
                let message = format!(
                    "the warps of a warpgroup issue different products: another warp has line {line} with A 0x{:x}, B 0x{:x}; \
                     this one has A 0x{a_descriptor:x}, B 0x{b_descriptor:x}",
                    other.a_descriptor, other.b_descriptor
                );
                return Err(self.lane_fault(FaultKind::Protocol, message, warp, mask));
            }
            other.issued |= issued.issued;
        } else {
            queue.queue.push_back(issued);
        }
        warp.products.issued += 1;
        let first = warp.index * LANES as u32;
        self.observer.async_issue(product_op(group, number), first..first + LANES as u32, self.pc, AsyncKind::Product, None)
    }

    pub(super) fn product_wait(&mut self, warp: &mut Warp, pending: u32, mask: u32) -> Step<Flow> {
        self.require_converged(warp, mask)?;
        let over = warp.products.committed.len().saturating_sub(pending as usize);
        let Some(upto) = warp.products.committed.drain(..over).next_back() else { return Ok(Flow::Next) };
        if self.warpgroups[warp.index as usize / 4].done >= upto {
            self.observer.products_waited(warp.index, upto);
            return Ok(Flow::Next);
        }
        Ok(Flow::Wait { wait: Wait::Products { upto }, again: false })
    }

    fn chunk(&mut self, op: u64, pc: u32, address: u32) -> Step<[u8; 16]> {
        let at = self.check_shared(u64::from(address), 16, 16)?;
        self.observer.shared(Agent::Async(op), pc, at, 16, AccessKind::Read)?;
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.shared[at as usize..at as usize + 16]);
        Ok(bytes)
    }

    /// A matrix from shared memory as rows of K values: `out[row * depth + k]`.
    fn matrix(&mut self, op: u64, pc: u32, rows: u32, input: MatrixType, descriptor: u64, transposed: bool) -> Step<Vec<f32>> {
        let descriptor = Descriptor::decode(descriptor);
        let mut raw = Vec::with_capacity(rows as usize * 32);
        if transposed {
            for k in 0..16 {
                for octet in 0..rows / 8 {
                    raw.extend_from_slice(&self.chunk(op, pc, descriptor.mn_major(octet, k))?);
                }
            }
        } else {
            for row in 0..rows {
                for chunk in 0..2 {
                    raw.extend_from_slice(&self.chunk(op, pc, descriptor.k_major(row, chunk))?);
                }
            }
        }
        let values = decode(input, &raw);
        if !transposed {
            return Ok(values);
        }
        let mut out = vec![0.0; values.len()];
        for k in 0..16 {
            for row in 0..rows as usize {
                out[row * 16 + k] = values[k * rows as usize + row];
            }
        }
        Ok(out)
    }

    /// Executes the next product of a warpgroup.
    pub(super) fn execute_product(&mut self, group: usize) -> Step<()> {
        let Some(issued) = self.warpgroups[group].queue.pop_front() else { return Ok(()) };
        let op = product_op(group as u32, self.warpgroups[group].done);
        let kernel = self.kernel;
        let Op::Wgmma(product) = &kernel.code[issued.pc as usize].op else { return Ok(()) };
        self.pc = issued.pc;
        let name = |fault: Box<Fault>| fault.thread(group as u32 * 128).pc(issued.pc);
        let depth = if product.input == MatrixType::TF32 { 8 } else { 16 };
        let mut a = match product.a {
            MatrixA::Shared { transposed, .. } => {
                self.matrix(op, issued.pc, 64, product.input, issued.a_descriptor, transposed).map_err(name)?
            }
            MatrixA::Registers(regs) => self.register_matrix(group, product.input, regs),
        };
        let b = self.matrix(op, issued.pc, product.n, product.input, issued.b_descriptor, product.b_transposed).map_err(name)?;
        if product.negate_a != product.negate_b {
            a.iter_mut().for_each(|x| *x = -*x);
        }
        let b = interleave(&b, product.n as usize, depth);
        for w in 0..4 {
            let a = spread(&a[w * 16 * depth..(w + 1) * 16 * depth], depth);
            let warp = &mut self.warps[group * 4 + w];
            multiply(&mut warp.words, &product.accumulators, &a, &b, depth, issued.scale_d);
        }
        self.warpgroups[group].done += 1;
        self.observer.async_done(op);
        Ok(())
    }

    /// A from registers: register `r` of a lane holds row `lane/4 + 8 (r % 2)`, columns `8 (r/2) + 2 (lane % 4)` and the next; in tf32, one
    /// column `4 (r/2) + lane % 4`.
    fn register_matrix(&self, group: usize, input: MatrixType, regs: [u32; 4]) -> Vec<f32> {
        let depth = if input == MatrixType::TF32 { 8 } else { 16 };
        let mut out = vec![0.0; 64 * depth];
        for w in 0..4 {
            let warp = &self.warps[group * 4 + w];
            for (r, &slot) in regs.iter().enumerate() {
                for (lane, word) in warp.words[slot as usize].iter().enumerate() {
                    let row = 16 * w + lane / 4 + 8 * (r % 2);
                    if depth == 8 {
                        out[row * 8 + 4 * (r / 2) + lane % 4] = decode(input, &word.to_le_bytes())[0];
                    } else {
                        let pair = decode_pair(input, *word);
                        let column = 8 * (r / 2) + 2 * (lane % 4);
                        out[row * 16 + column..row * 16 + column + 2].copy_from_slice(&pair);
                    }
                }
            }
        }
        out
    }
}

fn decode_pair(input: MatrixType, word: u32) -> [f32; 2] {
    let halves = [word as u16, (word >> 16) as u16];
    match input {
        MatrixType::BF16 => halves.map(|h| bf16::from_bits(h).to_f32()),
        _ => halves.map(|h| half::f16::from_bits(h).to_f32()),
    }
}

fn decode(input: MatrixType, raw: &[u8]) -> Vec<f32> {
    if input == MatrixType::TF32 {
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        return raw.chunks_exact(4).map(|bytes| f32::from_bits(word(bytes) & !0x1fff)).collect();
    }
    let halves: Vec<u16> = raw.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
    match input {
        MatrixType::BF16 => halves.iter().map(|h| f32::from_bits(u32::from(*h) << 16)).collect(),
        _ => halves.reinterpret_cast::<half::f16>().to_f32_vec(),
    }
}

/// B in the order of the accumulators: `[(octet, k, parity)][c]` is column `8 octet + 2 c + parity` at depth `k`.
fn interleave(b: &[f32], n: usize, depth: usize) -> Vec<[f32; 4]> {
    let mut out = vec![[0.0; 4]; n / 8 * depth * 2];
    for octet in 0..n / 8 {
        for k in 0..depth {
            for parity in 0..2 {
                let cell = &mut out[(octet * depth + k) * 2 + parity];
                for (c, value) in cell.iter_mut().enumerate() {
                    *value = b[(8 * octet + 2 * c + parity) * depth + k];
                }
            }
        }
    }
    out
}

/// A in the order of the lanes: `[half][k][lane]` is row `lane/4 + 8 half` at depth `k`.
fn spread(a: &[f32], depth: usize) -> Vec<[f32; LANES]> {
    let mut out = vec![[0.0; LANES]; 2 * depth];
    for half in 0..2 {
        for k in 0..depth {
            out[half * depth + k] = std::array::from_fn(|lane| a[(lane / 4 + 8 * half) * depth + k]);
        }
    }
    out
}

fn multiply(words: &mut [[u32; LANES]], accumulators: &[u32], a: &[[f32; LANES]], b: &[[f32; 4]], depth: usize, accumulate: bool) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        // SAFETY: the features were just detected.
        unsafe { multiply_avx2(words, accumulators, a, b, depth, accumulate) };
        return;
    }
    multiply_lanes(words, accumulators, a, b, depth, accumulate);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_avx2(words: &mut [[u32; LANES]], accumulators: &[u32], a: &[[f32; LANES]], b: &[[f32; 4]], depth: usize, accumulate: bool) {
    multiply_lanes(words, accumulators, a, b, depth, accumulate);
}

#[inline(always)]
fn multiply_lanes(words: &mut [[u32; LANES]], accumulators: &[u32], a: &[[f32; LANES]], b: &[[f32; 4]], depth: usize, accumulate: bool) {
    for (at, pair) in accumulators.chunks_exact(2).enumerate() {
        let (octet, half) = (at / 2, at % 2);
        let load = |slot: u32| if accumulate { words[slot as usize].map(f32::from_bits) } else { [0.0; LANES] };
        let (mut even, mut odd) = (load(pair[0]), load(pair[1]));
        for k in 0..depth {
            let rows = &a[half * depth + k];
            let (x, y) = (b[(octet * depth + k) * 2], b[(octet * depth + k) * 2 + 1]);
            let (x, y) = (doubled(x), doubled(y));
            for q in 0..4 {
                for l in 0..8 {
                    even[8 * q + l] = rows[8 * q + l].mul_add(x[l], even[8 * q + l]);
                    odd[8 * q + l] = rows[8 * q + l].mul_add(y[l], odd[8 * q + l]);
                }
            }
        }
        words[pair[0] as usize] = even.map(f32::to_bits);
        words[pair[1] as usize] = odd.map(f32::to_bits);
    }
}

#[inline(always)]
fn doubled(x: [f32; 4]) -> [f32; 8] {
    [x[0], x[1], x[2], x[3], x[0], x[1], x[2], x[3]]
}
