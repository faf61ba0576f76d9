//! Windows of every kind, over lengths around the edges of tiles.

use crate::native_head_dims;
use hopper_attention::HeadDims;
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{
    Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Profile, Sinks, Values, check_cases, ensure, with_element,
};

/// (left, right).
type Window = (Option<usize>, Option<usize>);

const WINDOWS: [(&str, Window); 9] = [
    ("own_key", (Some(0), Some(0))),
    ("two_keys", (Some(1), Some(0))),
    ("few_keys", (Some(5), Some(3))),
    ("a_tile_before", (Some(64), Some(0))),
    ("a_tile_and_one_behind", (Some(127), Some(1))),
    ("long_before", (Some(200), None)),
    ("open_before", (None, Some(7))),
    ("open_before_to_own_key", (None, Some(0))),
    ("both_beyond_the_tile", (Some(140), Some(130))),
];

/// (seqlen_q, seqlen_k): around tile edges, with rows that see nothing on either side.
const LENGTHS: [(usize, usize); 16] = [
    (1, 1),
    (65, 64),
    (127, 300),
    (300, 127),
    (128, 128),
    (130, 129),
    (193, 192),
    (63, 257),
    (257, 63),
    (192, 300),
    (1, 300),
    (300, 1),
    (129, 193),
    (64, 65),
    (257, 300),
    (300, 257),
];

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for (turn, head_dims) in native_head_dims().enumerate() {
        for (index, (name, window)) in WINDOWS.into_iter().enumerate() {
            for dtype in ElementType::ALL {
                let name = format!("windows::{name}::hdim{head_dims}_{}", dtype.name());
                let turn = 3 * turn + 2 * index + usize::from(dtype == ElementType::F16);
                tests.push(DeviceTest::new(name, move || over_lengths(dtype, head_dims, window, turn)));
            }
        }
        tests.push(DeviceTest::new(format!("windows::with_causal::hdim{head_dims}"), move || with_causal(head_dims)));
        tests.push(DeviceTest::new(format!("windows::that_hide_nothing::hdim{head_dims}"), move || hides_nothing(head_dims)));
        tests.push(DeviceTest::new(format!("windows::large_and_peaked::hdim{head_dims}"), move || large_and_peaked(head_dims)));
        tests.push(DeviceTest::on_hardware(format!("windows::long::hdim{head_dims}"), move || long(head_dims)));
    }
    tests.push(DeviceTest::new("windows::of_any_size", of_any_size));
    tests
}

/// On the emulator every pair of lengths meets every kernel, but not with every window.
fn over_lengths(dtype: ElementType, head_dims: HeadDims, (left, right): Window, turn: usize) -> Result<(), Failure> {
    let (first, step) = Profile::get().pick((0, 1), (turn % 16, if dtype == ElementType::Bf16 { 4 } else { 8 }));
    let lengths = LENGTHS.into_iter().cycle().skip(first).step_by(step).take(16 / step);
    let (heads, heads_k) = Profile::get().pick((4, 2), (2, 1));
    let case = |(seqlen_q, seqlen_k)| Case::new(dtype, head_dims, seqlen_q, seqlen_k).heads(1, heads, heads_k).window(left, right);
    check_cases(lengths.map(case))
}

/// The smaller bound of the two holds.
fn with_causal(head_dims: HeadDims) -> Result<(), Failure> {
    let case = |(left, right)| Case::new(ElementType::Bf16, head_dims, 150, 170).causal(true).heads(1, 2, 2).window(left, right);
    check_cases([(Some(20), Some(50)), (Some(100), None)].map(case))
}

/// A window at least as long as the sequences changes no bit: neither of the plain kernels, nor of the general ones, which sinks ask for.
fn hides_nothing(head_dims: HeadDims) -> Result<(), Failure> {
    let (seqlen_q, seqlen_k) = Profile::get().pick((300, 200), (140, 100));
    let case = |dtype| Case::new(dtype, head_dims, seqlen_q, seqlen_k);
    for (case, right) in [
        (case(ElementType::Bf16), seqlen_q - 1),
        (case(ElementType::F16).causal(true), 0),
        (case(ElementType::Bf16).sinks(Sinks::Mixed), seqlen_q - 1),
    ] {
        let without = bits(&case)?;
        for (left, right) in [(Some(seqlen_k - 1), Some(right)), (Some(1 << 31), Some(right)), (Some(usize::MAX), None)] {
            let with = case.clone().window(left, right);
            ensure!(bits(&with)? == without, "a window of {left:?}, {right:?} changes bits of {}", case.text());
        }
    }
    Ok(())
}

/// Every bit of O, and of the log-sum-exp.
pub(super) fn bits(case: &Case) -> Result<(Vec<u16>, Vec<u32>), Failure> {
    with_element!(case.dtype, T => {
        let output = DeviceProblem::<T>::new(case, &Inputs::draw(case))?.run(&Stream::new()?)?;
        let lse = output.lse.unwrap_or_default();
        Ok((bytemuck::cast_slice(&output.o).to_vec(), bytemuck::cast_slice(&lse).to_vec()))
    })
}

fn large_and_peaked(head_dims: HeadDims) -> Result<(), Failure> {
    let values = [Values::Normal { factor: 30.0 }, Values::Peaked { factor: 2.0 }, Values::Integers];
    check_cases(values.into_iter().step_by(Profile::get().pick(1, 2)).map(|values| {
        let case = Case::new(ElementType::Bf16, head_dims, 100, 210).heads(1, 2, 1).window(Some(50), Some(20));
        let softmax_scale = values.logits_are_exact().then_some(1e6);
        Case { softmax_scale, ..case.values(values) }
    }))
}

/// Bounds of 0 and 1 key, and near the largest numbers that anything on the way to the kernel holds.
fn of_any_size() -> Result<(), Failure> {
    let bounds = [0, 1, (1 << 31) - 1025, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, usize::MAX - 1, usize::MAX];
    let case = |left, right| Case::new(ElementType::Bf16, 64, 20, 30).window(Some(left), Some(right));
    check_cases(bounds.into_iter().flat_map(|bound| [case(bound, 3), case(3, bound)]))
}

fn long(head_dims: HeadDims) -> Result<(), Failure> {
    let case = |(seqlen_q, seqlen_k, left, right)| {
        let case = Case::new(ElementType::Bf16, head_dims, seqlen_q, seqlen_k).heads(2, 8, 2).window(left, right);
        case.judging_pairs(1 << 22)
    };
    check_cases(
        [
            (4096, 4096, Some(1024), Some(0)),
            (4000, 4100, Some(100), Some(100)),
            (8192, 8192, Some(4095), Some(0)),
            (2048, 5000, Some(999), Some(33)),
            (5000, 2048, None, Some(500)),
        ]
        .map(case),
    )
}
