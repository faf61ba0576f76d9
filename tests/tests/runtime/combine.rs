//! Attention over parts of the keys, merged.

use half::{bf16, f16};
use hopper_attention::reference::{HostTensor, Problem, exact};
use hopper_attention::{Dim, Layout, raw};
use hopper_attention_tests::gpu::{Guarded, Stream};
use hopper_attention_tests::{DeviceTest, Failure, TestElement, ensure};

const BATCH: usize = 2;
const SEQLEN: usize = 13;
const HEADS: usize = 3;
const ROWS: usize = BATCH * SEQLEN * HEADS;

pub fn tests() -> Vec<DeviceTest> {
    vec![
        DeviceTest::new("combine::by_definition::bf16", || by_definition::<bf16>(2.0)),
        DeviceTest::new("combine::by_definition::f16", || by_definition::<f16>(2.0)),
        DeviceTest::new("combine::lse_of_any_size", || by_definition::<bf16>(1e4)),
        DeviceTest::new("combine::prefix_and_suffix::bf16", || prefix_and_suffix::<bf16>(8e-3)),
        DeviceTest::new("combine::prefix_and_suffix::f16", || prefix_and_suffix::<f16>(1e-3)),
    ]
}

/// Numbers from -1 to 1 that look random.
fn draw(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// One part, in device memory and as numbers: `[batch, seqlen, heads, head_dim]` and `[batch, heads, seqlen]`.
struct HostPart<T> {
    o: Vec<T>,
    lse: Vec<f32>,
}

impl<T: TestElement> HostPart<T> {
    /// Some rows have seen no key, and hold NaN; row 5 has seen none in any part.
    fn draw(head_dim: usize, lse_factor: f32, seed: u64) -> Self {
        let mut next = draw(seed);
        let mut part = Self { o: Vec::new(), lse: (0..ROWS).map(|_| next() * lse_factor).collect() };
        part.o.resize_with(ROWS * head_dim, || T::from_f32(next()));
        for row in (0..ROWS).filter(|row| *row == 5 || (row + seed as usize).is_multiple_of(7)) {
            part.lse[row] = f32::NEG_INFINITY;
            part.o[o_index(row) * head_dim..(o_index(row) + 1) * head_dim].fill(T::from_f32(f32::NAN));
        }
        part
    }
}

/// Where the row of O is that belongs to number `row` of the LSE.
fn o_index(row: usize) -> usize {
    let (head, seq_idx) = (row / SEQLEN, row % SEQLEN);
    (head / HEADS * SEQLEN + seq_idx) * HEADS + head % HEADS
}

/// Each number of parts against the sums in f64, O with gaps between its rows.
fn by_definition<T: TestElement>(lse_factor: f32) -> Result<(), Failure> {
    for (head_dim, count) in [(8, 1), (64, 2), (72, 3), (128, 5), (256, 64)] {
        let parts: Vec<HostPart<T>> = (0..count).map(|seed| HostPart::draw(head_dim, lse_factor, seed as u64 + 1)).collect();
        let layout = Layout::bshd([BATCH, SEQLEN, HEADS, head_dim]);
        let mut memory = Vec::new();
        let mut raw_parts = Vec::new();
        for part in &parts {
            let (o, lse) = (Guarded::new(size_of_val(&part.o[..]), 16)?, Guarded::new(4 * ROWS, 0)?);
            o.write(&part.o)?;
            lse.write(&part.lse)?;
            let tensor = raw::Tensor4 { address: o.address(), dtype: T::DTYPE, layout };
            raw_parts.push(raw::Part { o: tensor, lse: raw::Lse { address: lse.address(), len: ROWS } });
            memory.push((o, lse));
        }
        let row_stride = head_dim + 8;
        let gaps = Layout { strides: [SEQLEN * HEADS * row_stride, HEADS * row_stride, row_stride], ..layout };
        let (o, lse) = (Guarded::new(2 * ROWS * row_stride, 32)?, Guarded::new(4 * ROWS, 0)?);
        let stream = Stream::new()?;
        let output = raw::Tensor4 { address: o.address(), dtype: T::DTYPE, layout: gaps };
        // SAFETY: all of it stays allocated until the stream has been waited for, and nothing else touches it.
        unsafe { raw::combine(&raw_parts, &output, Some(raw::Lse { address: lse.address(), len: ROWS }), stream.raw())? };
        stream.wait(|| format!("combine of {count} parts"))?;
        o.check_guards("o")?;
        lse.check_guards("lse")?;
        let (o, lse) = (o.read::<T>()?, lse.read::<f32>()?);
        for row in 0..ROWS {
            let values = &o[o_index(row) * row_stride..(o_index(row) + 1) * row_stride];
            check_row(&parts, row, &values[..head_dim], lse[row]).map_err(|failure| failure.during(format!("{count} parts, row {row}")))?;
            let poison = bytemuck::cast_slice::<T, u16>(&values[head_dim..]);
            ensure!(poison.iter().all(|&gap| gap == hopper_attention_tests::gpu::POISON), "a gap behind row {row} was written to");
        }
    }
    Ok(())
}

fn check_row<T: TestElement>(parts: &[HostPart<T>], row: usize, o: &[T], lse: f32) -> Result<(), Failure> {
    let seen: Vec<_> = parts.iter().filter(|part| part.lse[row] != f32::NEG_INFINITY).collect();
    let largest = seen.iter().map(|part| f64::from(part.lse[row])).fold(f64::NEG_INFINITY, f64::max);
    if seen.is_empty() {
        ensure!(
            lse == f32::NEG_INFINITY && o.iter().all(|o| o.to_f32() == 0.0),
            "no part has seen a key, but O = {:?}, LSE = {lse}",
            o[0].to_f32()
        );
        return Ok(());
    }
    let weights: Vec<f64> = seen.iter().map(|part| (f64::from(part.lse[row]) - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let expected = largest + sum.ln();
    ensure!((f64::from(lse) - expected).abs() <= 1e-6 + 2e-7 * expected.abs(), "LSE is {lse}, but must be {expected}");
    for (column, &o_device) in o.iter().enumerate() {
        let element = |part: &&HostPart<T>| f64::from(part.o[o_index(row) * o.len() + column].to_f32());
        let expected = seen.iter().zip(&weights).map(|(part, weight)| weight * element(part)).sum::<f64>() / sum;
        let allowed = T::EPSILON / 2.0 * expected.abs() + T::SMALLEST + 1e-5;
        let o_device = f64::from(o_device.to_f32());
        ensure!((o_device - expected).abs() <= allowed, "O is {o_device} in column {column}, but must be {expected}");
    }
    Ok(())
}

/// Four chunks of the keys, one of them a single key and one empty, against float64 attention over all keys: no row of O may be further off
/// than `tolerance` of its norm.
fn prefix_and_suffix<T: TestElement>(tolerance: f64) -> Result<(), Failure> {
    let (seqlen_q, seqlen_k, heads, head_dim) = (70, 200, 2, 64);
    let shape = |seqlen| Layout::bshd([1, seqlen, heads, head_dim]);
    let values = |seed, seqlen: usize| {
        let mut next = draw(seed);
        (0..seqlen * heads * head_dim).map(|_| T::from_f32(3.0 * next())).collect::<Vec<T>>()
    };
    let (q, k, v) = (values(1, seqlen_q), values(2, seqlen_k), values(3, seqlen_k));
    let host = |data, seqlen| HostTensor::new(data, shape(seqlen));
    let expected = exact::attention(&Problem::new(host(&q, seqlen_q)?, host(&k, seqlen_k)?, host(&v, seqlen_k)?)?);

    let guarded = |data: &[T]| -> Result<Guarded, Failure> {
        let memory = Guarded::new(size_of_val(data), 0)?;
        memory.write(data)?;
        Ok(memory)
    };
    let (q_memory, k_memory, v_memory) = (guarded(&q)?, guarded(&k)?, guarded(&v)?);
    let tensor = |memory: &Guarded, seqlen| raw::Tensor4 { address: memory.address(), dtype: T::DTYPE, layout: shape(seqlen) };
    let rows = heads * seqlen_q;
    let output = || -> Result<_, Failure> { Ok((Guarded::new(2 * q.len(), 0)?, Guarded::new(4 * rows, 0)?)) };
    let part = |(o, lse): &(Guarded, Guarded)| raw::Part { o: tensor(o, seqlen_q), lse: raw::Lse { address: lse.address(), len: rows } };
    let stream = Stream::new()?;
    let mut parts = Vec::new();
    for keys in [0..60, 60..61, 61..200, 200..200] {
        let memory = output()?;
        let (k, v) = (tensor(&k_memory, seqlen_k).slice(Dim::Seqlen, keys.clone())?, tensor(&v_memory, seqlen_k).slice(Dim::Seqlen, keys)?);
        let raw::Part { o, lse } = part(&memory);
        // SAFETY: all of it stays allocated until the stream has been waited for, and nothing else touches it.
        unsafe { raw::forward(&tensor(&q_memory, seqlen_q), &k, &v, &o, Some(lse), &raw::Options::new(), stream.raw())? };
        parts.push(memory);
    }
    let merged = output()?;
    let raw::Part { o, lse } = part(&merged);
    // SAFETY: as above; the stream has the parts computed first.
    unsafe { raw::combine(&parts.iter().map(part).collect::<Vec<_>>(), &o, Some(lse), stream.raw())? };
    stream.wait(|| "the parts and their merging".into())?;
    let (o, lse) = (merged.0.read::<T>()?, merged.1.read::<f32>()?);
    for (row, (o, expected)) in o.chunks_exact(head_dim).zip(expected.o.chunks_exact(head_dim)).enumerate() {
        let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let error = norm(&mut o.iter().zip(expected).map(|(o, expected)| f64::from(o.to_f32()) - expected));
        let allowed = tolerance * norm(&mut expected.iter().copied());
        ensure!(error <= allowed, "row {row} is off by {error}, but {allowed} is allowed");
    }
    for (row, (lse, expected)) in lse.iter().zip(&expected.lse).enumerate() {
        ensure!((f64::from(*lse) - expected).abs() < 1e-4, "LSE of row {row} is {lse}, but must be {expected}");
    }
    Ok(())
}
