//! V and O of another head_dim than Q and K, on the kernels for equal ones and on those of their own.

use hopper_attention_tests::{Case, DeviceTest, ElementType, Failure, Placement, Profile, Score, Sinks, check_cases};

/// (head_dim, head_dim_v).
const PAIRS: [(usize, usize); 14] = [
    (192, 128),
    (192, 64),
    (160, 128),
    (136, 96),
    (128, 192),
    (64, 128),
    (128, 64),
    (96, 64),
    (128, 8),
    (8, 128),
    (64, 256),
    (256, 64),
    (72, 40),
    (40, 200),
];

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for (head_dim, head_dim_v) in PAIRS {
        for dtype in ElementType::ALL {
            let name = |what: &str| format!("head_dims::{what}::{head_dim}_and_{head_dim_v}_{}", dtype.name());
            tests.push(DeviceTest::new(name("plain"), move || plain(dtype, head_dim, head_dim_v)));
            tests.push(DeviceTest::new(name("general"), move || general(dtype, head_dim, head_dim_v)));
        }
    }
    tests.push(DeviceTest::new("head_dims::layouts", layouts));
    tests.push(DeviceTest::on_hardware("head_dims::every_pair", every_pair));
    tests
}

fn plain(dtype: ElementType, head_dim: usize, head_dim_v: usize) -> Result<(), Failure> {
    let lengths = Profile::get().pick(vec![(300, 400), (129, 130), (1, 7), (400, 250), (128, 256)], vec![(70, 140), (130, 70), (1, 257)]);
    let case = |(seqlen_q, seqlen_k)| Case::new(dtype, (head_dim, head_dim_v), seqlen_q, seqlen_k).heads(1, 2, 1);
    check_cases(lengths.into_iter().flat_map(|lengths| [false, true].map(|causal| case(lengths).causal(causal))))
}

fn general(dtype: ElementType, head_dim: usize, head_dim_v: usize) -> Result<(), Failure> {
    let (seqlen_q, seqlen_k) = Profile::get().pick((300, 400), (70, 130));
    let case = Case::new(dtype, (head_dim, head_dim_v), seqlen_q, seqlen_k).heads(1, 2, 1);
    check_cases([
        case.clone().window(Some(60), Some(0)).sinks(Sinks::Drawn(1)),
        case.clone().causal(true).score(Score::SoftCap(10.0)),
        case.score(Score::Alibi),
    ])
}

/// Gaps, orders and broadcasts: V and O have strides of their own.
fn layouts() -> Result<(), Failure> {
    let once = Placement { broadcast_batch: true, broadcast_heads: true, ..Placement::BSHD };
    let gaps = Placement { order: [2, 0, 1], gaps: [8, 24, 40], offset: 24, ..Placement::BSHD };
    check_cases([(96, 64), (192, 128), (136, 104)].into_iter().flat_map(|head_dims| {
        let case = Case::new(ElementType::Bf16, head_dims, 70, 190).heads(2, 4, 2);
        [
            case.clone().placed(Placement::BHSD),
            case.clone().placed(gaps).causal(true),
            Case { k: once, v: gaps, ..case.clone() },
            Case { v: once, ..case.window(Some(30), Some(5)) },
        ]
    }))
}

fn every_pair() -> Result<(), Failure> {
    let sizes = [8, 64, 72, 96, 128, 136, 192, 256];
    let pairs = sizes.into_iter().flat_map(|head_dim| sizes.map(|head_dim_v| (head_dim, head_dim_v)));
    check_cases(pairs.enumerate().flat_map(|(index, (head_dim, head_dim_v))| {
        let case = Case::new(ElementType::ALL[index % 2], (head_dim, head_dim_v), 200, 333).heads(2, 4, 2);
        [case.clone().causal(index % 3 == 0), case.window(Some(77), Some(20)).sinks(Sinks::Drawn(index as u64))]
    }))
}
