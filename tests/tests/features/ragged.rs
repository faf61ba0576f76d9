//! Sequences of different lengths: packed, padded, one side so and the other so.

use crate::problem::{Batch, OnDevice, Side, check};
use half::{bf16, f16};
use hopper_attention::{Error, raw};
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{DeviceTest, Failure, Profile, ensure};

/// Empty ones anywhere, single rows, edges of tiles and beside them.
const LENGTHS: [(usize, usize); 9] = [(0, 5), (1, 1), (64, 63), (0, 0), (130, 200), (65, 0), (3, 129), (200, 70), (0, 9)];

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for head_dim in [64, 96, 128, 192, 256] {
        tests.push(DeviceTest::new(format!("packed::hdim{head_dim}_bf16"), move || packed::<bf16>(head_dim)));
        tests.push(DeviceTest::new(format!("packed::hdim{head_dim}_f16"), move || packed::<f16>(head_dim)));
        tests.push(DeviceTest::new(format!("sides::hdim{head_dim}"), move || sides(head_dim)));
    }
    tests.push(DeviceTest::new("everything_at_once", everything_at_once));
    tests.push(DeviceTest::new("more_tiles_than_multiprocessors", many_tiles));
    tests.push(DeviceTest::new("graph_with_changed_lengths", changed_lengths));
    tests.push(DeviceTest::new("a_sequence_alone_has_the_same_bits", same_bits));
    tests.push(DeviceTest::new("wrong_lengths", wrong_lengths));
    tests
}

fn packed<T: hopper_attention_tests::TestElement>(head_dim: usize) -> Result<(), Failure> {
    check::<T>(&Batch::packed(head_dim, &LENGTHS))?;
    check::<T>(&Batch { causal: true, heads: 6, heads_k: 2, ..Batch::packed(head_dim, &LENGTHS) })?;
    check::<T>(&Batch { window: (Some(33), Some(2)), ..Batch::packed(head_dim, &LENGTHS) })
}

/// Every way of one side with every way of the other.
fn sides(head_dim: usize) -> Result<(), Failure> {
    let (padded, packed) = (Side::Padded { capacity: 210 }, Side::Packed { spare: 4 });
    for (q, k) in [(padded, padded), (packed, padded), (padded, packed), (packed, packed)] {
        check::<bf16>(&Batch { q, k, causal: true, ..Batch::new(head_dim, &LENGTHS) })?;
    }
    let equal_q: Vec<_> = LENGTHS.iter().map(|&(_, k)| (70, k)).collect();
    let equal_k: Vec<_> = LENGTHS.iter().map(|&(q, _)| (q, 70)).collect();
    for ragged in [padded, packed] {
        check::<bf16>(&Batch { k: ragged, ..Batch::new(head_dim, &equal_q) })?;
        check::<bf16>(&Batch { q: ragged, ..Batch::new(head_dim, &equal_k) })?;
    }
    Ok(())
}

fn everything_at_once() -> Result<(), Failure> {
    for (head_dim, head_dim_v) in [(64, 64), (128, 128), (192, 128)] {
        let batch = Batch {
            head_dim_v,
            heads: 4,
            heads_k: 2,
            causal: true,
            window: (Some(60), None),
            sinks: Some(vec![1.0, -3.0, f32::NEG_INFINITY, 5.0]),
            q: Side::Packed { spare: 2 },
            k: Side::Packed { spare: 1 },
            ..Batch::new(head_dim, &LENGTHS)
        };
        check::<bf16>(&Batch { softcap: Some(10.0), ..batch.clone() })?;
        check::<f16>(&Batch { slopes: Some(vec![0.5, 0.25, 0.1, 0.0]), ..batch })?;
    }
    Ok(())
}

/// So that tiles are drawn from the counter, and empty slots are passed over.
fn many_tiles() -> Result<(), Failure> {
    let count = Profile::get().pick(200, 12);
    let lengths: Vec<_> = (0..count).map(|i| (i * 37 % 150, i * 53 % 170)).collect();
    for causal in [false, true] {
        check::<bf16>(&Batch { causal, heads: 4, heads_k: 1, ..Batch::packed(128, &lengths) })?;
    }
    Ok(())
}

/// A captured launch follows the lengths on the device.
fn changed_lengths() -> Result<(), Failure> {
    let batch = Batch { causal: true, ..Batch::packed(128, &[(64, 100), (30, 40), (100, 60)]) };
    let mut on_device = OnDevice::<bf16>::new(&batch)?;
    let stream = Stream::new()?;
    let graph = stream.capture(|| on_device.enqueue(&stream))?;
    let replay = |on_device: &OnDevice<bf16>| -> Result<(), Failure> {
        on_device.poison()?;
        // SAFETY: the graph works on the memory of `on_device`, and is in flight once.
        unsafe { graph.launch(&stream)? };
        stream.wait(|| "a replay".into())?;
        on_device.judge()
    };
    replay(&on_device)?;
    // The last query of the first sequence becomes the second one's; the third loses its end. Rows beyond it count for nothing any more.
    let new_q = [3, 66, 97, 150];
    on_device.cu_seqlens[0].as_ref().expect("packed").write(&new_q)?;
    on_device.inputs.q_rows.starts = new_q[..3].iter().map(|&start| start as usize).collect();
    on_device.batch.lengths = vec![(63, 100), (31, 40), (53, 60)];
    replay(&on_device)
}

/// In a batch with others and by itself: the same kernel, the same bits; and again and again.
fn same_bits() -> Result<(), Failure> {
    let batch = Batch { causal: true, ..Batch::packed(128, &[(150, 90), (70, 300), (129, 129)]) };
    let on_device = OnDevice::<bf16>::new(&batch)?;
    let stream = Stream::new()?;
    let mut first = None;
    for _ in 0..Profile::get().pick(20, 2) {
        on_device.poison()?;
        on_device.enqueue(&stream)?;
        stream.wait(|| "a repeat".into())?;
        let (o, _) = on_device.output()?;
        let bits = bytemuck::cast_slice::<bf16, u16>(&o).to_vec();
        ensure!(*first.get_or_insert_with(|| bits.clone()) == bits, "two runs differ");
    }
    let first = first.expect("it ran");
    for sequence in 0..3 {
        let (q, k) = (&on_device.inputs.q_rows, &on_device.inputs.k_rows);
        let bounds = |rows: &crate::problem::Rows| {
            let cu_seqlens = rows.cu_seqlens.as_ref().expect("packed");
            crate::problem::DeviceArray::new(&[cu_seqlens[sequence], cu_seqlens[sequence + 1]])
        };
        let (cu_seqlens_q, cu_seqlens_k) = (bounds(q)?, bounds(k)?);
        let arrays = raw::Arrays::new().cu_seqlens_q(cu_seqlens_q.raw()).cu_seqlens_k(cu_seqlens_k.raw());
        on_device.poison()?;
        let [q, k, v, o] = &on_device.tensors;
        // SAFETY: all of it outlives the wait.
        unsafe { raw::forward_with(q, k, v, o, None, &raw::Options::new().causal(true), &arrays, stream.raw())? };
        stream.wait(|| "one sequence".into())?;
        let (o, _) = on_device.output()?;
        let row = batch.heads * batch.head_dim;
        let start = on_device.inputs.q_rows.starts[sequence] * row;
        let elements = start..start + batch.lengths[sequence].0 * row;
        let alone = bytemuck::cast_slice::<bf16, u16>(&o);
        ensure!(alone[elements.clone()] == first[elements], "sequence {sequence} alone has other bits");
    }
    Ok(())
}

/// Whatever the arrays hold, nothing outside of the tensors is written, and the checked mode names what is wrong.
fn wrong_lengths() -> Result<(), Failure> {
    let batch = Batch::packed(64, &[(70, 70), (10, 30), (90, 20)]);
    let on_device = OnDevice::<bf16>::new(&batch)?;
    let stream = Stream::new()?;
    // Sequences that overlap are written twice, within O, which the emulator rightly calls a race: those run on a GPU only.
    let apart = [
        ([-5, 73, 83, 173], "cu_seqlens_q[0]"),
        ([3, 73, 83, 100_000], "cu_seqlens_q[3]"),
        ([i32::MAX, 0, -1, i32::MAX], "cu_seqlens_q[0]"),
    ];
    let overlapping = [([3, 73, 60, 173], "cu_seqlens_q[2]"), ([i32::MIN, i32::MAX, i32::MIN, i32::MAX], "cu_seqlens_q[0]")];
    let all_wrong = apart.into_iter().chain(overlapping.into_iter().take(Profile::get().pick(2, 0)));
    for (wrong, field) in all_wrong {
        on_device.cu_seqlens[0].as_ref().expect("packed").write(&wrong)?;
        on_device.cu_seqlens[1].as_ref().expect("packed").write(&wrong)?;
        let [q, k, ..] = &on_device.tensors;
        // SAFETY: the arrays are live device memory, and nobody writes them now.
        let outcome = unsafe { raw::check_lengths(q, k, &on_device.arrays, stream.raw()) };
        ensure!(matches!(&outcome, Err(Error::Invalid { field: found, .. }) if found == field), "{field} is not refused: {outcome:?}");
        on_device.poison()?;
        on_device.enqueue(&stream)?;
        stream.wait(|| format!("{wrong:?}"))?;
        on_device.output()?;
    }
    Ok(())
}
