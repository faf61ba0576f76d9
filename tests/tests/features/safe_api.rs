//! The layer on cust: packed sequences by safe calls, and what it refuses.

use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};
use half::{bf16, f16};
use hopper_attention::reference::{HostTensor, Problem, Row, exact};
use hopper_attention::{Arrays, Attention, CustomKernel, Error, Layout, Tensor};
use hopper_attention_tests::{DeviceTest, ElementType, Failure, Function, ensure, random_bits};
use std::mem::MaybeUninit;

const HEADS: usize = 2;
const HEAD_DIM: usize = 64;
/// One sequence of 70, an empty one, one of 30; two rows belong to nobody.
const CU_SEQLENS: [i32; 4] = [1, 71, 71, 101];
const TOTAL: usize = 102;

pub fn tests() -> Vec<DeviceTest> {
    vec![
        DeviceTest::new("safe_api::packed_sequences", packed),
        DeviceTest::new("safe_api::wrong_lengths_are_refused", refused),
        DeviceTest::new("custom::safe_api", custom),
        DeviceTest::new("custom::safe_api_refusals", custom_refused),
    ]
}

fn failed(error: cust::error::CudaError) -> Failure {
    Failure(format!("a call of cust: {error}"))
}

fn values(seed: u64) -> Vec<bf16> {
    let number = |i| (random_bits(seed, i) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    (0..(TOTAL * HEADS * HEAD_DIM) as u64).map(|i| bf16::from_f32(number(i))).collect()
}

/// Each sequence as by definition, under a window, with sinks; rows of nobody are 0 with an LSE of -inf.
fn packed() -> Result<(), Failure> {
    let (layout, sinks) = (Layout::bshd([1, TOTAL, HEADS, HEAD_DIM]), [0.5f32, -1.0]);
    let host = [values(1), values(2), values(3)];
    let [q, k, v] = [0, 1, 2].map(|i| Tensor::from_slice(&host[i], layout));
    let (q, k, v) = (q?, k?, v?);
    let cu_seqlens = DeviceBuffer::from_slice(&CU_SEQLENS).map_err(failed)?;
    let device_sinks = DeviceBuffer::from_slice(&sinks).map_err(failed)?;
    let arrays = Arrays::new().cu_seqlens_q(&cu_seqlens).cu_seqlens_k(&cu_seqlens).sinks(&device_sinks);
    let output = Attention::new().causal(true).window(Some(40), None).forward_with(&q, &k, &v, &arrays)?;
    let (o, mut lse) = (output.o.to_vec()?, vec![f32::NAN; output.lse.len()]);
    output.lse.copy_to(&mut lse).map_err(failed)?;

    let row_elements = HEADS * HEAD_DIM;
    for bounds in CU_SEQLENS.windows(2) {
        let (start, end) = (bounds[0] as usize, bounds[1] as usize);
        let part = |data: &[bf16]| data[start * row_elements..end * row_elements].to_vec();
        let parts = [part(&host[0]), part(&host[1]), part(&host[2])];
        let tensor = |i: usize| HostTensor::new(&parts[i], Layout::bshd([1, end - start, HEADS, HEAD_DIM]));
        let problem = Problem::new(tensor(0)?, tensor(1)?, tensor(2)?)?.causal(true).window(Some(40), None).sinks(&sinks)?;
        let expected = exact::attention(&problem);
        for (i, expected) in expected.o.iter().enumerate() {
            let o = f64::from(o[start * row_elements + i].to_f32());
            ensure!((o - expected).abs() <= 6e-3, "O is {o}, but must be {expected}, element {i} of the sequence from row {start} on");
        }
        for (i, expected) in expected.lse.iter().enumerate() {
            let (head, position) = (i / (end - start), i % (end - start));
            let lse = f64::from(lse[head * TOTAL + start + position]);
            ensure!((lse - expected).abs() <= 1e-4, "LSE is {lse}, but must be {expected}, head {head}, row {}", start + position);
        }
    }
    for row in [0, TOTAL - 1] {
        let o = &o[row * row_elements..(row + 1) * row_elements];
        let nothing = o.iter().all(|o| o.to_f32() == 0.0) && (0..HEADS).all(|head| lse[head * TOTAL + row] == f32::NEG_INFINITY);
        ensure!(nothing, "row {row} belongs to nobody, but is not 0 with an LSE of -inf");
    }
    Ok(())
}

/// Before anything is launched, by name and index.
fn refused() -> Result<(), Failure> {
    let x = Tensor::from_slice(&values(1), Layout::bshd([1, TOTAL, HEADS, HEAD_DIM]))?;
    for (wrong, field) in
        [([1, 71, 60, 101], "cu_seqlens_q[2]"), ([1, 71, 71, 103], "cu_seqlens_q[3]"), ([-1, 71, 71, 101], "cu_seqlens_q[0]")]
    {
        let cu_seqlens = DeviceBuffer::from_slice(&wrong).map_err(failed)?;
        let arrays = Arrays::new().cu_seqlens_q(&cu_seqlens).cu_seqlens_k(&cu_seqlens);
        let outcome = Attention::new().forward_with(&x, &x, &x, &arrays);
        ensure!(matches!(&outcome, Err(Error::Invalid { field: found, .. }) if found == field), "{field} is not refused: {outcome:?}");
    }
    Ok(())
}

/// Packed sequences that see keys of an even distance, by the kernel that takes no arguments.
fn custom() -> Result<(), Failure> {
    let layout = Layout::bshd([1, TOTAL, HEADS, HEAD_DIM]);
    let host = [values(1), values(2), values(3)].map(|values| values.iter().map(|x| f16::from_f32(x.to_f32())).collect::<Vec<_>>());
    let [q, k, v] = [0, 1, 2].map(|i| Tensor::from_slice(&host[i], layout));
    let (q, k, v) = (q?, k?, v?);
    let cu_seqlens = DeviceBuffer::from_slice(&CU_SEQLENS).map_err(failed)?;
    let arrays = Arrays::new().cu_seqlens_q(&cu_seqlens).cu_seqlens_k(&cu_seqlens);
    let kernel = &CustomKernel::<()>::from_ptx(Function::Even.ptx(ElementType::F16))?;
    // SAFETY: the kernel was defined with `()`, which names no memory.
    let output = unsafe { Attention::new().causal(true).forward_custom(kernel, &(), &q, &k, &v, &arrays)? };
    let (o, mut lse) = (output.o.to_vec()?, vec![f32::NAN; output.lse.len()]);
    output.lse.copy_to(&mut lse).map_err(failed)?;
    let row_elements = HEADS * HEAD_DIM;
    let even = |row: Row, key: usize| (row.position + key).is_multiple_of(2);
    for bounds in CU_SEQLENS.windows(2) {
        let (start, end) = (bounds[0] as usize, bounds[1] as usize);
        let parts: Vec<&[f16]> = host.iter().map(|data| &data[start * row_elements..end * row_elements]).collect();
        let tensor = |i: usize| HostTensor::new(parts[i], Layout::bshd([1, end - start, HEADS, HEAD_DIM]));
        let problem = Problem::new(tensor(0)?, tensor(1)?, tensor(2)?)?.causal(true).mask_function(&even);
        let expected = exact::attention(&problem);
        for (i, expected) in expected.o.iter().enumerate() {
            let o = f64::from(o[start * row_elements + i].to_f32());
            ensure!((o - expected).abs() <= 1e-3, "O is {o}, but must be {expected}, element {i} of the sequence from row {start} on");
        }
        for (i, expected) in expected.lse.iter().enumerate() {
            let (head, position) = (i / (end - start), i % (end - start));
            let lse = f64::from(lse[head * TOTAL + start + position]);
            ensure!((lse - expected).abs() <= 1e-4, "LSE is {lse}, but must be {expected}, head {head}, row {}", start + position);
        }
    }
    for row in [0, TOTAL - 1] {
        let nothing = o[row * row_elements..(row + 1) * row_elements].iter().all(|o| o.to_f32() == 0.0);
        ensure!(nothing, "row {row} belongs to nobody, but is not 0");
    }

    // The same into memory of one's own, where rows of nobody keep what they held.
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None).map_err(failed)?;
    let mut into = Tensor::from_slice(&vec![f16::ONE; host[0].len()], layout)?;
    let mut into_lse = DeviceBuffer::from_slice(&vec![1.0f32; lse.len()]).map_err(failed)?;
    // SAFETY: as above; the tensors have been written, outlive the work, which is waited for, and nothing else touches them.
    unsafe {
        let attention = Attention::new().causal(true);
        attention.forward_custom_into(kernel, &(), &q, &k, &v, &mut into, Some(&mut into_lse), &arrays, &stream)?;
    }
    stream.synchronize().map_err(failed)?;
    let (into, mut kept_lse) = (into.to_vec()?, vec![f32::NAN; lse.len()]);
    into_lse.copy_to(&mut kept_lse).map_err(failed)?;
    let is_kept = |row: usize| row == 0 || row == TOTAL - 1;
    for (i, (into, o)) in into.iter().zip(&o).enumerate() {
        let expected = if is_kept(i / row_elements) { f16::ONE } else { *o };
        ensure!(into.to_bits() == expected.to_bits(), "element {i} of O is {into}, but was {expected}");
    }
    for (i, (into, lse)) in kept_lse.iter().zip(&lse).enumerate() {
        let expected = if is_kept(i % TOTAL) { 1.0 } else { *lse };
        ensure!(into.to_bits() == expected.to_bits(), "number {i} of the LSE is {into}, but was {expected}");
    }
    Ok(())
}

/// Before there is memory for the output.
fn custom_refused() -> Result<(), Failure> {
    let (x, wide) = (Tensor::<f16>::zeroed(Layout::bshd([1, 10, 2, 64]))?, Tensor::<f16>::zeroed(Layout::bshd([1, 10, 2, 104]))?);
    let other = Tensor::<bf16>::zeroed(*x.layout())?;
    let (kernel, none) = (&CustomKernel::<()>::from_ptx(Function::Even.ptx(ElementType::F16))?, Arrays::new());
    let (untyped, four_bytes) = (Function::Even.kernel(ElementType::F16), [MaybeUninit::zeroed(); 4]);
    let wrong = DeviceBuffer::from_slice(&[0, 11]).map_err(failed)?;
    let lengths = Arrays::new().cu_seqlens_q(&wrong).cu_seqlens_k(&wrong);
    let slopes = DeviceBuffer::from_slice(&[0.5f32, 0.25]).map_err(failed)?;
    let plain = Attention::new();
    // SAFETY: each call is refused, which is what is checked; the kernel was defined with `()`.
    let answers = unsafe {
        [
            ("args", plain.forward_custom(untyped, &four_bytes[..], &x, &x, &x, &none).err()),
            ("q.head_dim", plain.forward_custom(kernel, &(), &wide, &wide, &x, &none).err()),
            ("v.head_dim", plain.forward_custom(kernel, &(), &x, &x, &wide, &none).err()),
            ("q.dtype", plain.forward_custom(kernel, &(), &other, &other, &other, &none).err()),
            ("softcap", plain.softcap(20.0).forward_custom(kernel, &(), &x, &x, &x, &none).err()),
            ("alibi_slopes", plain.forward_custom(kernel, &(), &x, &x, &x, &Arrays::new().alibi_slopes(&slopes)).err()),
            ("cu_seqlens_q[1]", plain.forward_custom(kernel, &(), &x, &x, &x, &lengths).err()),
        ]
    };
    for (expected, answer) in answers {
        let named = matches!(&answer, Some(Error::Invalid { field, .. } | Error::Unsupported { field, .. }) if field == expected);
        ensure!(named, "expected an error that names {expected}, got {answer:?}");
    }
    Ok(())
}
