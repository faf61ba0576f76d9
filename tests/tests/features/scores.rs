//! Soft cap, ALiBi and sinks, alone and with masks and grouped heads.

use crate::native_head_dims;
use hopper_attention::HeadDims;
use hopper_attention_tests::{
    Case, DeviceTest, ElementType, Failure, Inputs, Number, Profile, Score, Sinks, Values, check_cases, check_inputs, ensure, with_element,
};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for head_dims in native_head_dims() {
        for dtype in ElementType::ALL {
            let name = |what: &str| format!("{what}::hdim{head_dims}_{}", dtype.name());
            tests.push(DeviceTest::new(name("softcap::full_and_causal"), move || softcap(dtype, head_dims)));
            tests.push(DeviceTest::new(name("alibi::full_and_causal"), move || alibi(dtype, head_dims)));
            tests.push(DeviceTest::new(name("sinks::full_and_causal"), move || sinks(dtype, head_dims)));
        }
        tests.push(DeviceTest::new(format!("sinks::where_no_key_is_seen::hdim{head_dims}"), move || no_key_is_seen(head_dims)));
        tests.push(DeviceTest::new(format!("scores::combined::hdim{head_dims}"), move || combined(head_dims)));
    }
    tests.push(DeviceTest::new("softcap::logits_of_any_size", softcap_of_any_logits));
    tests.push(DeviceTest::new("alibi::distances_of_any_size", alibi_of_any_distance));
    tests.push(DeviceTest::new("sinks::of_any_size", sinks_of_any_size));
    tests.push(DeviceTest::on_hardware("scores::long", long));
    tests
}

fn case(dtype: ElementType, head_dims: impl Into<HeadDims>) -> Case {
    let (seqlen_q, seqlen_k) = Profile::get().pick((330, 420), (70, 140));
    Case::new(dtype, head_dims, seqlen_q, seqlen_k).heads(1, 2, 1)
}

fn softcap(dtype: ElementType, head_dims: HeadDims) -> Result<(), Failure> {
    let mut cases = Vec::new();
    for (softcap, factor) in [(1.0, 1.0), (15.0, 10.0), (50.0, 30.0)] {
        for causal in [false, true] {
            cases.push(case(dtype, head_dims).causal(causal).score(Score::SoftCap(softcap)).values(Values::Normal { factor }));
        }
    }
    check_cases(cases.into_iter().step_by(Profile::get().pick(1, 3)))
}

/// Up to a thousand times the cap, and far below it.
fn softcap_of_any_logits() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for softcap in [1.0, 15.0, 50.0, 1e4] {
        for values in [Values::Normal { factor: 1e3 }, Values::Peaked { factor: 30.0 }, Values::Normal { factor: 1e-3 }, Values::Tiny] {
            cases.push(case(ElementType::F16, 64).score(Score::SoftCap(softcap)).values(values));
        }
    }
    check_cases(cases.into_iter().step_by(Profile::get().pick(1, 3)))
}

/// Sequences of unlike lengths: the distance counts from the diagonal that ends at the bottom right.
fn alibi(dtype: ElementType, head_dims: HeadDims) -> Result<(), Failure> {
    let (heads, heads_k) = Profile::get().pick((4, 2), (2, 1));
    let mut cases = Vec::new();
    for (seqlen_q, seqlen_k) in Profile::get().pick(vec![(330, 420), (420, 330), (1, 500), (257, 257)], vec![(70, 140), (140, 70)]) {
        for causal in [false, true] {
            let case = Case::new(dtype, head_dims, seqlen_q, seqlen_k).causal(causal).heads(1, heads, heads_k);
            cases.push(case.score(Score::Alibi));
        }
    }
    check_cases(cases.into_iter().step_by(Profile::get().pick(1, 3)))
}

/// Distances of up to 2^14: more than any element type holds exactly.
fn alibi_of_any_distance() -> Result<(), Failure> {
    let lengths = Profile::get().pick(vec![(200, 16_000), (16_000, 200), (5, 16_000)], vec![(5, 1500), (150, 3)]);
    let heads = Profile::get().pick(vec![(1, 1), (8, 2)], vec![(1, 1)]);
    check_cases(lengths.into_iter().flat_map(|(seqlen_q, seqlen_k)| {
        heads.iter().map(move |&(heads, heads_k)| {
            let case = Case::new(ElementType::Bf16, 64, seqlen_q, seqlen_k).heads(1, heads, heads_k).score(Score::Alibi);
            case.judging_pairs(1 << 21)
        })
    }))
}

fn sinks(dtype: ElementType, head_dims: HeadDims) -> Result<(), Failure> {
    let all = [Sinks::Drawn(1), Sinks::All(Number::Finite(0.0)), Sinks::All(Number::Finite(3.5)), Sinks::Drawn(2)];
    let cases = all.into_iter().enumerate().map(|(index, sinks)| case(dtype, head_dims).causal(index % 2 == 0).sinks(sinks));
    check_cases(cases.step_by(Profile::get().pick(1, 3)))
}

/// Heads whose sink is -inf, and such whose sink is all that counts, or nothing.
fn sinks_of_any_size() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for dtype in ElementType::ALL {
        cases.push(Case::new(dtype, 64, 70, 100).heads(2, 5, 5).causal(true).sinks(Sinks::Mixed));
        for number in [-1e4, 1e4, 1e30, -1e30] {
            cases.push(Case::new(dtype, 128, 20, 30).sinks(Sinks::All(Number::Finite(number))));
        }
        cases.push(Case::new(dtype, 128, 20, 30).sinks(Sinks::All(Number::NegativeInfinity)));
        // Logits as large as the sink, and much larger.
        for factor in [1e3, 1e4] {
            let values = Values::Normal { factor };
            cases.push(Case::new(dtype, 64, 70, 100).heads(1, 5, 1).values(values).sinks(Sinks::Mixed));
        }
    }
    check_cases(cases)
}

/// Rows without a key: O is 0, and the log-sum-exp is the sink itself.
fn no_key_is_seen(head_dims: HeadDims) -> Result<(), Failure> {
    for (dtype, seqlen_k) in [(ElementType::Bf16, 0), (ElementType::F16, 30), (ElementType::Bf16, 129)] {
        let case = Case::new(dtype, head_dims, 140, seqlen_k).causal(true).heads(1, 5, 1).sinks(Sinks::Mixed);
        let output = with_element!(dtype, T => check_inputs(&case, &Inputs::<T>::draw(&case))?.lse);
        let sinks = case.per_head().sinks.unwrap_or_default();
        for (row, &lse) in output.iter().flatten().enumerate() {
            let (head_idx, position) = (row / case.seqlen_q, row % case.seqlen_q);
            let (sink, alone) = (sinks[head_idx], case.visible_keys(position).is_empty());
            // The kernel turns it into units of log2 and back.
            let same = lse == sink || (lse - sink).abs() <= 2e-7 * sink.abs();
            ensure!(!alone || same, "LSE of row {position} is {lse}, the sink of head {head_idx} is {sink}: {}", case.text());
        }
    }
    Ok(())
}

fn combined(head_dims: HeadDims) -> Result<(), Failure> {
    let (heads, heads_k) = Profile::get().pick((6, 2), (3, 1));
    let mut cases = Vec::new();
    for dtype in ElementType::ALL {
        for score in [Score::Identity, Score::SoftCap(20.0), Score::Alibi] {
            let case = case(dtype, head_dims).heads(1, heads, heads_k).score(score).values(Values::Normal { factor: 4.0 });
            cases.push(case.clone().causal(true).sinks(Sinks::Drawn(5)));
            cases.push(case.clone().window(Some(40), Some(10)).sinks(Sinks::Mixed));
            cases.push(case.window(None, Some(33)));
        }
    }
    check_cases(cases.into_iter().skip(Profile::get().pick(0, head_dims.head_dim / 32 % 5)).step_by(Profile::get().pick(1, 5)))
}

fn long() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for (index, head_dims) in native_head_dims().enumerate() {
        for score in [Score::Identity, Score::SoftCap(50.0), Score::Alibi] {
            let dtype = ElementType::ALL[index % 2];
            let case = Case::new(dtype, head_dims, 4096, 4096).causal(true).heads(2, 8, 2).score(score).sinks(Sinks::Drawn(7));
            cases.push(case.judging_pairs(1 << 22));
        }
    }
    check_cases(cases)
}
