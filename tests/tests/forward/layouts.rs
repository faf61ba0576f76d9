//! Where tensors lie: orders of dimensions, gaps, slices, broadcasts, alignment, and offsets that 32 bits do not hold.

use hopper_attention_tests::{Case, DeviceTest, ElementType, Failure, Placement, Profile, Values, check_case, check_cases, random_bits};

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

pub fn tests() -> Vec<DeviceTest> {
    let mut tests: Vec<DeviceTest> = vec![
        DeviceTest::new("layouts::batch_heads_seqlen", || check_cases(usual().map(|case| case.placed(Placement::BHSD)))),
        DeviceTest::new("layouts::every_order_of_dimensions", every_order),
        DeviceTest::new("layouts::packed_qkv", packed_qkv),
        DeviceTest::new("layouts::broadcast_keys_and_values", broadcast_keys_and_values),
        DeviceTest::new("layouts::broadcast_queries", broadcast_queries),
        DeviceTest::new("layouts::random_gaps", random_gaps),
        DeviceTest::new("layouts::every_alignment", every_alignment),
        DeviceTest::new("layouts::absurd_strides_of_single_entries", absurd_strides),
        DeviceTest::new("layouts::garbage_behind_the_sequence", garbage_behind_the_sequence),
    ];
    for (name, case) in beyond_32_bits() {
        tests.push(DeviceTest::on_hardware(format!("beyond_32_bits::{name}"), move || check_case(&case)));
    }
    tests
}

/// A case for each element type and mask, with several batch entries and grouped heads.
fn usual() -> impl Iterator<Item = Case> {
    let (seqlen_q, seqlen_k) = Profile::get().pick((150, 210), (70, 90));
    ElementType::ALL.into_iter().flat_map(move |dtype| {
        [(128, false), (64, true), (72, true)]
            .map(|(head_dim, causal)| Case::new(dtype, head_dim, seqlen_q, seqlen_k).causal(causal).heads(2, 6, 3))
    })
}

fn every_order() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for (index, case) in usual().enumerate() {
        for turn in 0..ORDERS.len() {
            let order = |tensor: usize| Placement { order: ORDERS[(turn + tensor * (index + 1)) % 6], ..Placement::BSHD };
            cases.push(Case { q: order(0), k: order(1), v: order(2), o: order(3), ..case.clone() });
        }
    }
    check_cases(cases.into_iter().step_by(Profile::get().pick(1, 5)))
}

fn packed_qkv() -> Result<(), Failure> {
    check_cases(usual().map(|case| Case { packed: true, seqlen_k: case.seqlen_q, ..case }))
}

fn broadcast_keys_and_values() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for case in usual() {
        for (broadcast_batch, broadcast_heads) in [(true, false), (false, true), (true, true)] {
            let placement = Placement { broadcast_batch, broadcast_heads, ..Placement::BHSD };
            cases.push(Case { k: placement, v: placement, ..case.clone() });
            cases.push(Case { k: placement, ..case.clone() });
            cases.push(Case { v: placement, ..case.clone() });
        }
    }
    check_cases(cases.into_iter().step_by(Profile::get().pick(1, 9)))
}

fn broadcast_queries() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for case in usual() {
        for (broadcast_batch, broadcast_heads) in [(true, false), (false, true), (true, true)] {
            cases.push(Case { q: Placement { broadcast_batch, broadcast_heads, ..Placement::BSHD }, ..case.clone() });
        }
    }
    check_cases(cases.into_iter().step_by(Profile::get().pick(1, 5)))
}

fn random_placement(seed: u64) -> Placement {
    let random = |index: u64, below: u64| (random_bits(seed, index) % below) as usize;
    Placement {
        order: ORDERS[random(0, 6)],
        gaps: [8 * random(1, 40), 8 * random(2, 40), 8 * random(3, 40)],
        offset: 8 * random(4, 16),
        ..Placement::BSHD
    }
}

fn random_gaps() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for (index, case) in usual().enumerate() {
        for round in 0..Profile::get().pick(8, 1) {
            let seed = (100 * index + round) as u64;
            let place = |tensor: u64| random_placement(seed + 7777 * tensor);
            cases.push(Case { q: place(0), k: place(1), v: place(2), o: place(3), seed, ..case.clone() });
        }
    }
    check_cases(cases)
}

/// Every multiple of 16 bytes that an address can be beyond a multiple of 256.
fn every_alignment() -> Result<(), Failure> {
    let case = Case::new(ElementType::F16, 64, 70, 90).heads(2, 2, 2);
    let placed = |offset: usize| {
        let place = |turn: usize| Placement { offset: (offset + 8 * turn) % 128, ..Placement::BSHD };
        Case { q: place(0), k: place(3), v: place(6), o: place(9), ..case.clone() }
    };
    check_cases((0..128).step_by(Profile::get().pick(8, 56)).map(placed))
}

fn absurd_strides() -> Result<(), Failure> {
    let absurd = Placement { wild_strides: true, ..Placement::BSHD };
    let shapes = [(1, 1, 70, 90), (1, 3, 70, 90), (3, 1, 70, 90), (1, 1, 1, 90), (1, 1, 70, 1), (1, 1, 1, 1)];
    check_cases(shapes.map(|(batch, heads, q, k)| Case::new(ElementType::Bf16, 128, q, k).heads(batch, heads, heads).placed(absurd)))
}

/// Slices of a longer sequence: what follows the keys in memory is NaN, and is read by nobody.
fn garbage_behind_the_sequence() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for case in usual() {
        for order in [[0, 1, 2], [0, 2, 1]] {
            let rows = 300 * case.head_dim * if order[2] == 2 { 6 } else { 1 };
            let placement = Placement { order, gaps: if order[2] == 2 { [rows, 0, 0] } else { [0, 0, rows] }, ..Placement::BSHD };
            cases.push(case.clone().placed(placement));
        }
    }
    check_cases(cases.into_iter().step_by(Profile::get().pick(1, 5)))
}

/// Elements more than 2^31 apart: by strides of each dimension, and in tensors that large.
fn beyond_32_bits() -> Vec<(&'static str, Case)> {
    let apart = 1 << 31;
    let gaps = |gaps| Placement { gaps, ..Placement::BSHD };
    let case = |dtype, head_dim| Case::new(dtype, head_dim, 150, 200).causal(true);
    let by_batch = case(ElementType::Bf16, 128).heads(2, 2, 2).placed(gaps([apart, 0, 0]));
    let by_head = case(ElementType::F16, 64).heads(1, 2, 2).placed(Placement { order: [2, 0, 1], ..gaps([0, 0, apart]) });
    let by_position = case(ElementType::Bf16, 256).heads(1, 2, 1).placed(gaps([0, 1 << 24, 0]));
    let large = |q, k| {
        let case = Case::new(ElementType::Bf16, 128, q, k).heads(1, 17, 17).values(Values::Uniform);
        Case { judged_rows: Some(400), ..case }
    };
    // 17 * 128 * 2^20 elements are 2.28e9.
    let long_queries = large(1 << 20, 200);
    let long_keys = Case { judged_rows: Some(64), ..large(150, 1 << 20) };
    vec![
        ("batch_stride", by_batch),
        ("head_stride", by_head),
        ("seqlen_stride", by_position),
        ("large_queries_and_output", long_queries),
        ("large_keys_and_values", long_keys),
    ]
}
