//! Sequences of one length.

use crate::problem::{Batch, OnDevice, check};
use half::{bf16, f16};
use hopper_attention::{Dim, raw};
use hopper_attention_tests::gpu::{Guarded, Stream};
use hopper_attention_tests::{DeviceTest, Failure, Profile};

/// One below, at and above the native sizes' edges, and each of them.
const HEAD_DIMS: [usize; 5] = [64, 96, 128, 192, 256];

/// Tests are named after the head_dim.
fn for_each_head_dim(name: &str, test: fn(usize) -> Result<(), Failure>) -> impl Iterator<Item = DeviceTest> {
    HEAD_DIMS.map(|head_dim| DeviceTest::new(format!("{name}::hdim{head_dim}"), move || test(head_dim))).into_iter()
}

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    tests.extend(for_each_head_dim("windows", windows));
    tests.extend(for_each_head_dim("softcap", softcap));
    tests.extend(for_each_head_dim("alibi", alibi));
    tests.extend(for_each_head_dim("sinks", sinks));
    tests.push(DeviceTest::new("unequal_head_dims", unequal_head_dims));
    tests.push(DeviceTest::new("sinks_joined_when_combining", sinks_joined_when_combining));
    tests
}

/// Lengths around the edges of tiles, fewer queries than keys and the reverse.
fn lengths() -> Vec<(usize, usize)> {
    let all = [(300, 300), (1, 300), (65, 130), (130, 65), (193, 257), (127, 129), (64, 64), (300, 1)];
    all[..Profile::get().pick(8, 3)].to_vec()
}

fn windows(head_dim: usize) -> Result<(), Failure> {
    const OPEN: Option<usize> = None;
    let windows = [(Some(0), Some(0)), (Some(5), Some(3)), (Some(127), Some(1)), (Some(64), OPEN), (OPEN, Some(70)), (Some(200), Some(0))];
    for lengths in lengths() {
        for window in windows {
            let batch = Batch { window, ..Batch::new(head_dim, &[lengths]) };
            check::<bf16>(&batch)?;
        }
        check::<f16>(&Batch { window: (Some(40), OPEN), causal: true, ..Batch::new(head_dim, &[lengths]) })?;
    }
    Ok(())
}

fn softcap(head_dim: usize) -> Result<(), Failure> {
    for lengths in lengths() {
        for (cap, magnitude, causal) in [(15.0, 1.0, false), (50.0, 8.0, true), (1.0, 30.0, true)] {
            let batch = Batch { softcap: Some(cap), magnitude, causal, ..Batch::new(head_dim, &[lengths]) };
            check::<bf16>(&batch)?;
        }
        check::<f16>(&Batch { softcap: Some(20.0), window: (Some(90), Some(10)), ..Batch::new(head_dim, &[lengths]) })?;
    }
    Ok(())
}

fn alibi(head_dim: usize) -> Result<(), Failure> {
    for lengths in lengths() {
        let slopes = Some(vec![0.5, 0.0625]);
        check::<bf16>(&Batch { slopes: slopes.clone(), ..Batch::new(head_dim, &[lengths]) })?;
        check::<f16>(&Batch { slopes, causal: true, window: (Some(100), None), ..Batch::new(head_dim, &[lengths]) })?;
    }
    Ok(())
}

/// Of all sizes; a row that sees no key has O = 0 and the sink as its LSE.
fn sinks(head_dim: usize) -> Result<(), Failure> {
    for lengths in lengths() {
        for sinks in [vec![0.0, 3.5], vec![f32::NEG_INFINITY, -1e4], vec![1e4, -2.0]] {
            let batch = Batch { sinks: Some(sinks), causal: true, ..Batch::new(head_dim, &[lengths]) };
            check::<bf16>(&batch)?;
        }
        check::<f16>(&Batch { sinks: Some(vec![1.0, 2.0]), softcap: Some(5.0), ..Batch::new(head_dim, &[lengths]) })?;
    }
    Ok(())
}

/// V and O wider or narrower than Q and K, by plain kernels and by general ones.
fn unequal_head_dims() -> Result<(), Failure> {
    for (head_dim, head_dim_v) in [(192, 128), (64, 128), (128, 64), (96, 64), (128, 8), (8, 256)] {
        for lengths in [(130, 200), (70, 70)] {
            for causal in [false, true] {
                let plain = Batch { head_dim_v, causal, ..Batch::new(head_dim, &[lengths]) };
                check::<bf16>(&plain)?;
                check::<f16>(&Batch { window: (Some(50), Some(20)), ..plain })?;
            }
        }
    }
    Ok(())
}

/// Parts of the keys without sinks, merged with them, are all keys with sinks.
fn sinks_joined_when_combining() -> Result<(), Failure> {
    let batch = Batch { sinks: Some(vec![2.0, f32::NEG_INFINITY]), ..Batch::new(64, &[(70, 200)]) };
    let on_device = OnDevice::<f16>::new(&batch)?;
    let ([q, k, v, o], stream) = (on_device.tensors, Stream::new()?);
    let mut parts = Vec::new();
    for keys in [0..60, 60..200] {
        let memory = (Guarded::new(2 * 70 * batch.heads * 64, 0)?, Guarded::new(4 * 70 * batch.heads, 0)?);
        let part_o = raw::Tensor4 { address: memory.0.address(), ..o };
        let part = raw::Part { o: part_o, lse: raw::Lse { address: memory.1.address(), len: on_device.lse.len } };
        let (k, v) = (k.slice(Dim::Seqlen, keys.clone())?, v.slice(Dim::Seqlen, keys)?);
        // SAFETY: all of it outlives the wait below.
        unsafe { raw::forward(&q, &k, &v, &part.o, Some(part.lse), &raw::Options::new(), stream.raw())? };
        parts.push((part, memory));
    }
    let raw_parts: Vec<_> = parts.iter().map(|(part, _)| *part).collect();
    // SAFETY: as above.
    unsafe { raw::combine_with_sinks(&raw_parts, &o, Some(on_device.lse), on_device.arrays.sinks.expect("given"), stream.raw())? };
    stream.wait(|| "the parts and their merging".into())?;
    on_device.judge_within(1e-3)
}
