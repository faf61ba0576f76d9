//! The maps of tensors whose sequences have lengths of their own.

use hopper_attention_kernels::params::RAGGED_ROWS;

use super::general_tests::{array, packed};
use super::map::Form;
use super::tests::{Arguments, K, O, Q, apart, draws};
use super::*;
use crate::{Dim, Layout};

const USED: u64 = 0x6_6000_0000;
const ROWS: u64 = RAGGED_ROWS as u64;

/// Padded: both sides have lengths, `batch` of them.
fn padded(mut arguments: Arguments, batch: usize) -> Arguments {
    arguments.arrays.seqused_q = array(USED, batch);
    arguments.arrays.seqused_k = array(USED, batch);
    arguments
}

/// The map of Q and the rows between its batch entries.
fn map_of_q(arguments: &Arguments) -> (MapDescription, u32) {
    let plan = arguments.accepted();
    (plan.maps[0].unwrap(), plan.features.unwrap().batch_rows[0])
}

#[test]
fn packed_tensors() {
    let plan = packed(5, 300, 500).accepted();
    let map = |address, rows: u64, heads, box_rows| MapDescription {
        address,
        dtype: DType::Bf16,
        dims: [128, ROWS, heads, rows + 1],
        strides_bytes: [heads * 256, 256, heads * 256],
        box_dims: [64, box_rows],
        form: Form::Ragged { pack_log2: 0 },
    };
    let [q, k, _, o] = plan.maps.map(Option::unwrap);
    let keys = plan.config.tile_n;
    assert_eq!([q, k, o], [map(Q, 300, 6, WARPGROUP_ROWS), map(K, 500, 2, keys), map(O, 300, 6, WARPGROUP_ROWS)]);
    let expected = EncodedDims {
        rank: 5,
        dims: [128, 2, 1 << 30, 501, (1 << 30) + 1],
        strides_bytes: [256, 512, 512, (1 << 34) - 512],
        box_dims: [64, 1, keys, 1, 1],
    };
    assert_eq!(k.encoded(), expected);
    assert_eq!(plan.regions[0].unwrap().bytes(), Q..Q + 300 * 6 * 256);
    assert_eq!(plan.regions[3].unwrap().bytes(), O..O + 300 * 6 * 256);
}

#[test]
fn one_side_alone_may_be_ragged() {
    let forms = |q: bool, k: bool| {
        let plan = Arguments::new()
            .with(|a| {
                a.arrays.seqused_q = if q { array(USED, 2) } else { None };
                a.arrays.seqused_k = if k { array(USED, 2) } else { None };
                // In any case a general kernel.
                a.options.softcap = Some(1.0);
            })
            .accepted();
        let is_ragged = |map: Option<MapDescription>| matches!(map.unwrap().form, Form::Ragged { .. });
        (plan.maps.map(is_ragged), plan.features.unwrap().batch_rows, plan.maps.map(|map| map.unwrap().dims))
    };
    let ragged = |rows: u64| [128, ROWS, if rows == 300 { 6 } else { 2 }, 2 * rows + 1];
    let (q, k) = ([128, 300, 6, 2], [128, 500, 2, 2]);
    assert_eq!(forms(false, false), ([false; 4], [0; 4], [q, k, k, q]));
    assert_eq!(forms(false, true), ([false, true, true, false], [0, 500, 500, 0], [q, ragged(500), ragged(500), q]));
    assert_eq!(forms(true, false), ([true, false, false, true], [300, 0, 0, 300], [ragged(300), k, k, ragged(300)]));
}

#[test]
fn padded_tensors_in_either_order() {
    // 2 entries of 300 rows; [b, h, s, d] has the rows of 6 heads between the entries.
    let (map, batch_rows) = map_of_q(&padded(Arguments::of(2, 300, 500, 6, 2, 128, Layout::bshd), 2));
    assert_eq!((map.dims, map.strides_bytes, batch_rows), ([128, ROWS, 6, 601], [6 * 256, 256, 6 * 256], 300));
    let (map, batch_rows) = map_of_q(&padded(Arguments::of(2, 300, 500, 6, 2, 128, Layout::bhsd), 2));
    assert_eq!((map.dims, map.strides_bytes, batch_rows), ([128, ROWS, 6, 2101], [256, 300 * 256, 256], 1800));
    // Gaps of 7 rows between the entries.
    let gaps = Arguments::new().with(|a| a.q.layout.strides[0] = 307 * 6 * 128);
    let (map, batch_rows) = map_of_q(&padded(gaps, 2));
    assert_eq!((map.dims[3], batch_rows), (608, 307));
}

#[test]
fn broadcast_tensors() {
    let one = Tensor4 { address: K, dtype: DType::Bf16, layout: Layout::bshd([1, 500, 1, 128]) };
    let shared = one.broadcast(Dim::Batch, 2).unwrap().broadcast(Dim::Heads, 2).unwrap();
    let plan = padded(Arguments::new(), 2).with(|a| a.k = shared).accepted();
    assert_eq!((plan.maps[1].unwrap().dims, plan.params.k_steps.head), ([128, ROWS, 1, 501], 0));
    assert_eq!(plan.features.unwrap().batch_rows, [300, 0, 500, 300]);
    // One entry: no way to the next.
    let (map, batch_rows) = map_of_q(&padded(Arguments::of(1, 300, 500, 6, 2, 128, Layout::bshd), 1));
    assert_eq!((map.dims[3], batch_rows), (301, 0));
}

#[test]
fn single_rows_take_any_stride() {
    let single = padded(Arguments::of(5, 1, 500, 6, 2, 128, Layout::bshd), 5).with(|a| a.q.layout.strides[1] = 3);
    let (map, batch_rows) = map_of_q(&single);
    assert_eq!((map.dims, map.strides_bytes, batch_rows), ([128, ROWS, 6, 6], [6 * 256, 256, 6 * 256], 1));
    // Not even entries: the row itself.
    let (map, batch_rows) = map_of_q(&padded(Arguments::of(1, 1, 500, 6, 2, 128, Layout::bshd), 1));
    assert_eq!((map.dims, map.strides_bytes, batch_rows), ([128, ROWS, 6, 2], [256; 3], 0));
    // Entries that overlap, which no stride of rows can say.
    single.with(|a| a.q.layout.strides[0] = 64).is_unsupported("q.batch_stride");
}

#[test]
fn entries_that_begin_between_rows() {
    let between = Arguments::new().with(|a| a.q.layout.strides[0] += 128);
    between.accepted();
    padded(between, 2).is_unsupported("q.batch_stride");
    let error = padded(between, 2).plan().unwrap_err().to_string();
    assert!(error.contains("q.batch_stride is 230528, but must be a multiple of q.seqlen_stride = 768"), "{error}");
    padded(Arguments::new().with(|a| a.k.layout.strides[0] += 128), 2).is_unsupported("k.batch_stride");
    padded(Arguments::new().with(|a| a.v.layout.strides[0] += 128), 2).is_unsupported("v.batch_stride");
    padded(Arguments::new().with(|a| a.o.layout.strides[0] += 128), 2).is_unsupported("o.batch_stride");
    // [s, b, h, d]
    padded(Arguments::new().with(|a| (a.q.layout.strides[0], a.q.layout.strides[1]) = (768, 1536)), 2).is_unsupported("q.batch_stride");
}

#[test]
fn more_rows_than_the_kernels_count() {
    let far = |rows: usize| {
        let arguments = padded(Arguments::of(2, 300, 500, 1, 1, 64, Layout::bshd), 2).with(apart);
        arguments.with(|a| a.k.layout.strides[0] = rows * 64)
    };
    let most = RAGGED_ROWS as usize - 500;
    assert_eq!(far(most).accepted().maps[1].unwrap().dims[3], ROWS + 1);
    far(most + 1).is_unsupported("k.layout");
}

/// Heads are the dimension next to the columns there, and rows of that may not overlap.
#[test]
fn heads_that_overlap() {
    let overlapping = |stride: usize| Arguments::new().with(|a| a.k.layout.strides[Dim::Heads as usize] = stride);
    overlapping(120).accepted();
    padded(overlapping(120), 2).is_unsupported("k.heads_stride");
    padded(overlapping(0), 2).accepted();
    padded(overlapping(128), 2).accepted();
}

/// Whether coordinates are within the map, and the address that they lead to, by the arithmetic of the copy engine.
fn reached(map: &MapDescription, coordinates: [u64; 5]) -> (bool, u64) {
    let EncodedDims { dims, strides_bytes, .. } = map.encoded();
    // They are signed numbers of 32 bits.
    assert!(coordinates.iter().all(|&coordinate| coordinate < 1 << 31));
    let inside = coordinates.iter().zip(dims).all(|(&coordinate, extent)| coordinate < extent);
    let steps = coordinates[1..].iter().zip(strides_bytes);
    (inside, steps.fold(map.address, |address, (coordinate, stride)| address.wrapping_add(coordinate.wrapping_mul(stride))))
}

/// What `cuTensorMapEncodeTiled` asks of a general kernel's map.
fn obeys_the_driver(map: &MapDescription) {
    let EncodedDims { rank, dims, strides_bytes, box_dims } = map.encoded();
    assert_eq!(rank, 5);
    assert!(dims.iter().all(|extent| (1..=1 << 32).contains(extent)), "{dims:?}");
    assert!(box_dims.iter().all(|extent| (1..=256).contains(extent)), "{box_dims:?}");
    assert!(strides_bytes.iter().all(|&stride| stride > 0 && stride % 16 == 0 && stride < 1 << 40), "{strides_bytes:?}");
    assert!(strides_bytes[0] >= 2 * dims[0], "{strides_bytes:?} for {dims:?}");
}

/// The rows that a kernel's coordinates reach.
#[test]
fn coordinates_lead_to_the_rows_of_a_sequence() {
    let far_apart = Arguments::new().with(apart).with(|a| a.q.layout = Layout { strides: [16 << 34, 1 << 34, 128], ..a.q.layout });
    for arguments in [Arguments::new(), Arguments::of(2, 300, 500, 6, 2, 128, Layout::bhsd), far_apart] {
        let plan = padded(arguments, 2).accepted();
        let (map, batch_rows) = (plan.maps[0].unwrap(), u64::from(plan.features.unwrap().batch_rows[0]));
        obeys_the_driver(&map);
        let [_, row_stride, head_stride] = arguments.q.layout.strides.map(|stride| 2 * stride as u64);
        for (batch_idx, length) in [(0, 0), (0, 1), (0, 300), (1, 7), (1, 300)] {
            let start = batch_idx * batch_rows;
            for row in 0..300 + 64 {
                // Out of bounds exactly behind the end: filled with zeros, and clipped.
                let (inside, address) = reached(&map, [0, 5, ROWS - length + row, start + length, ROWS]);
                assert_eq!(inside, row < length);
                assert_eq!(address, arguments.q.address + (start + row) * row_stride + 5 * head_stride);
            }
        }
    }
}

/// Any shape and strides of a general kernel, the bytes at which strides end and at which the way back wraps round among them.
fn anything(mut draw: impl FnMut(usize) -> usize) -> Arguments {
    const FAR: [usize; 6] = [(1 << 33) - 8, 1 << 33, (1 << 33) + 8, (1 << 39) - (1 << 33), (1 << 39) - 8, 1 << 39];
    const NEAR: [usize; 6] = [0, 8, 120, 128, 256, 768];
    const LENGTHS: [usize; 3] = [1, 2, 77];
    let (batch, heads_k, head_dim) = (1 + draw(3), 1 + draw(2), [8, 64, 128, 256][draw(4)]);
    let (heads, seqlen_q, seqlen_k) = (heads_k * [1, 2, 6][draw(3)], LENGTHS[draw(3)], LENGTHS[draw(3)]);
    let mut arguments = Arguments::of(batch, seqlen_q, seqlen_k, heads, heads_k, head_dim, Layout::bshd);
    arguments.options.softcap = Some(1.0);
    arguments.arrays.seqused_q = if draw(2) == 0 { array(USED, batch) } else { None };
    arguments.arrays.seqused_k = if draw(2) == 0 { array(USED, batch) } else { None };
    for (tensor, address) in [&mut arguments.q, &mut arguments.k, &mut arguments.v, &mut arguments.o].into_iter().zip(1..) {
        tensor.address = address << 56;
        if draw(2) == 0 {
            tensor.layout = Layout::bhsd(tensor.layout.shape);
        }
        let strides = &mut tensor.layout.strides;
        if draw(2) == 0 {
            strides[draw(3)] = if draw(2) == 0 { NEAR[draw(6)] } else { FAR[draw(6)] };
        }
        // Batch entries that are whole rows apart.
        if draw(4) == 0 {
            strides[0] = strides[1];
        }
    }
    arguments
}

/// What is accepted obeys the driver, and a kernel's coordinates lead where the layout says.
#[test]
fn maps_of_any_strides() {
    let mut draws = draws();
    let mut draw = |below: usize| draws(below as u64) as usize;
    let (mut ragged, mut others) = (0, 0);
    for _ in 0..20_000 {
        let arguments = anything(&mut draw);
        let Ok(plan) = arguments.plan() else { continue };
        let (plan, one) = (plan.expect("there are rows"), CoordinateSteps { head: 1, batch: 1 });
        let steps = [plan.params.q_steps, plan.params.k_steps, plan.params.v_steps, one];
        for (i, tensor) in [arguments.q, arguments.k, arguments.v, arguments.o].into_iter().enumerate() {
            let (map, batch_rows) = (plan.maps[i].unwrap(), u64::from(plan.features.unwrap().batch_rows[i]));
            obeys_the_driver(&map);
            *(if let Form::Ragged { .. } = map.form { &mut ragged } else { &mut others }) += 1;
            let [batch, rows, heads, _] = tensor.layout.shape.map(|extent| extent as u64);
            let (head_step, batch_step) = (u64::from(steps[i].head), u64::from(steps[i].batch));
            for (entry, row, head) in [(0, 0, 0), (batch - 1, 0, heads - 1), (0, rows - 1, heads - 1), (batch - 1, rows - 1, 0)] {
                let coordinates = match map.form {
                    Form::Ragged { .. } => [0, head * head_step, ROWS - rows + row, entry * batch_rows + rows, ROWS],
                    Form::General(Packing { pack_log2: 0, .. }) => [0, 0, row, head * head_step, entry * batch_step],
                    Form::General(Packing { heads_per_kv, .. }) => [0, head % heads_per_kv, row, head / heads_per_kv, entry * batch_step],
                    Form::Plain => panic!("a soft cap is a general kernel's"),
                };
                let [batch_stride, row_stride, head_stride] = tensor.layout.strides.map(|stride| 2 * stride as u64);
                let address = tensor.address + entry * batch_stride + row * row_stride + head * head_stride;
                assert_eq!(reached(&map, coordinates), (true, address), "{tensor:?}");
            }
        }
    }
    assert!(ragged > 4000 && others > 4000, "{ragged} {others}");
}
