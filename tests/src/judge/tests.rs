//! The rule must accept a right kernel and refuse wrong ones. The right kernel here is `tiled` with the columns of every head reversed: the
//! same computation with its sums in another order.

use super::*;
use crate::case::{Edit, ElementType, Number, Operand};
use crate::features::Sinks;
use crate::values::Values;
use crate::with_element;
use half::{bf16, f16};

fn reversed<T: Copy>(data: &[T], head_dim: usize) -> Vec<T> {
    data.chunks_exact(head_dim).flat_map(|row| row.iter().rev().copied()).collect()
}

/// What a right kernel might return.
fn computed<T: TestElement>(case: &Case, inputs: &Inputs<T>, rows: &[Row]) -> Attention<T, f32> {
    let turn = |data: &[T]| reversed(data, case.head_dim);
    let turn_v = |data: &[T]| reversed(data, case.o_head_dim());
    let turned = Inputs { q: turn(&inputs.q), k: turn(&inputs.k), v: turn_v(&inputs.v) };
    let attention = tiled::attention_rows(&turned.problem(case, &case.per_head()), rows).unwrap();
    Attention { o: turn_v(&attention.o), ..attention }
}

fn judge_computed<T: TestElement>(case: &Case, change: impl FnOnce(&mut Attention<T, f32>)) -> Result<Judgement, Failure> {
    let (inputs, rows) = (Inputs::<T>::draw(case), judged_rows(case));
    let mut got = computed(case, &inputs, &rows);
    change(&mut got);
    judge(case, &inputs, &rows, &got)
}

const ALL_VALUES: [Values; 8] = [
    Values::Normal { factor: 1.0 },
    Values::Normal { factor: 30.0 },
    Values::Normal { factor: 3000.0 },
    Values::Peaked { factor: 1.0 },
    Values::Peaked { factor: 20.0 },
    Values::Integers,
    Values::Uniform,
    Values::Tiny,
];

#[test]
fn a_right_kernel_passes() {
    for dtype in ElementType::ALL {
        for (seqlen_q, seqlen_k) in [(1, 1), (3, 2), (5, 200), (130, 300), (300, 130), (64, 3000)] {
            for head_dim in [8, 72, 128, 256] {
                for (seed, values) in ALL_VALUES.into_iter().enumerate() {
                    let case = Case::new(dtype, head_dim, seqlen_q, seqlen_k).causal(seed % 2 == 0).heads(1, 2, 1).values(values);
                    let case = Case { seed: seed as u64, ..case }.judging_pairs(1 << 16);
                    let judged = with_element!(dtype, T => judge_computed::<T>(&case, |_| ()));
                    let judged = judged.unwrap_or_else(|failure| panic!("{failure}: {}", case.text()));
                    assert!(judged.o_ratio <= 0.9 && judged.lse_ratio <= 0.9, "{judged:?}: {}", case.text());
                }
            }
        }
    }
}

const SCORES: [Score; 4] = [Score::Identity, Score::SoftCap(1.0), Score::SoftCap(50.0), Score::Alibi];

#[test]
fn a_right_general_kernel_passes() {
    for dtype in ElementType::ALL {
        for (seqlen_q, seqlen_k) in [(1, 1), (130, 300), (300, 130), (64, 1000)] {
            for (index, score) in SCORES.into_iter().enumerate() {
                for values in ALL_VALUES {
                    let case = Case::new(dtype, 72, seqlen_q, seqlen_k).heads(1, 5, 1).values(values).score(score).head_dim_v(40);
                    let case = case.window(Some(100), [None, Some(3)][index % 2]).sinks(Sinks::Mixed).judging_pairs(1 << 16);
                    let judged = with_element!(dtype, T => judge_computed::<T>(&case, |_| ()));
                    let judged = judged.unwrap_or_else(|failure| panic!("{failure}: {}", case.text()));
                    assert!(judged.o_ratio <= 0.9 && judged.lse_ratio <= 0.9, "{judged:?}: {}", case.text());
                }
            }
        }
    }
}

/// What a kernel returns that computes `wrong` when it was asked for `case`.
fn computed_wrongly(case: &Case, wrong: &Case) -> Result<Judgement, Failure> {
    with_element!(case.dtype, T => {
        let (inputs, rows) = (Inputs::<T>::draw(case), judged_rows(case));
        judge(case, &inputs, &rows, &computed(wrong, &inputs, &rows))
    })
}

#[test]
fn wrong_features_are_refused() {
    for dtype in ElementType::ALL {
        let usual = Case::new(dtype, 64, 130, 200).heads(1, 2, 1).values(Values::Normal { factor: 4.0 });
        let wrong = |case: &Case, wrong: Case| {
            computed_wrongly(case, &wrong).expect_err(&format!("{} passes for {}", wrong.text(), case.text()));
        };
        let window = usual.clone().window(Some(50), Some(7));
        wrong(&window, usual.clone().window(Some(51), Some(7)));
        wrong(&window, usual.clone().window(Some(49), Some(7)));
        wrong(&window, usual.clone().window(Some(50), Some(6)));
        wrong(&usual.clone().score(Score::SoftCap(15.0)), usual.clone().score(Score::SoftCap(15.5)));
        wrong(&usual.clone().score(Score::SoftCap(15.0)), usual.clone());
        wrong(&usual.clone().score(Score::Alibi), usual.clone());
        wrong(&usual.clone().sinks(Sinks::All(Number::Finite(3.5))), usual.clone());
        wrong(&usual.clone().sinks(Sinks::All(Number::Finite(3.5))), usual.sinks(Sinks::All(Number::Finite(3.5 * std::f32::consts::LN_2))));
    }
}

#[test]
fn exact_logits_of_any_size_are_judged_without_slack() {
    for scale in [1e4, 1e6, 1e9] {
        let case = Case::new(ElementType::F16, 64, 100, 200).values(Values::Integers);
        let case = Case { softmax_scale: Some(scale), ..case };
        let judged = judge_computed::<f16>(&case, |_| ()).unwrap();
        assert!(judged.o_error < 4e-3, "{judged:?}");
        // A kernel whose maximum is rounded apart from its logits: weights off by a factor that differs from row to row.
        judge_computed::<f16>(&case, |got| got.o.iter_mut().for_each(|o| *o = f16::from_f32(o.to_f32() * 1.01))).unwrap_err();
    }
}

/// A case like most: full rows, no row alike.
fn usual(dtype: ElementType) -> Case {
    Case::new(dtype, 64, 100, 1000).heads(1, 2, 1)
}

fn refuses(dtype: ElementType, words: &str, change: impl Fn(&mut [f32], &mut [f32])) {
    let refused = with_element!(dtype, T => judge_computed::<T>(&usual(dtype), |got| {
        let mut o: Vec<f32> = got.o.iter().map(|&o| Element::to_f32(o)).collect();
        change(&mut o, &mut got.lse);
        got.o = o.into_iter().map(<T as Element>::from_f32).collect();
    }));
    let message = refused.unwrap_err().0;
    assert!(message.starts_with(words), "{message}");
}

use hopper_attention::Element;

#[test]
fn wrong_results_are_refused() {
    for dtype in ElementType::ALL {
        refuses(dtype, "O of Row { batch_idx: 0, head_idx: 0, position: 2 }", |o, _| o.copy_within(64..128, 128));
        refuses(dtype, "O of Row { batch_idx: 0, head_idx: 1, position: 99 }, column 63", |o, _| *o.last_mut().unwrap() += 0.01);
        refuses(dtype, "O of Row { batch_idx: 0, head_idx: 0, position: 0 }, column 5 is NaN", |o, _| o[5] = f32::NAN);
        refuses(dtype, "LSE of Row { batch_idx: 0, head_idx: 0, position: 7 }", |_, lse| lse[7] = f32::NEG_INFINITY);
        refuses(dtype, "LSE", |_, lse| lse.iter_mut().for_each(|lse| *lse *= std::f32::consts::LOG2_E));
        refuses(dtype, "LSE", |_, lse| lse[100] += 2e-5);
    }
}

/// The second look alone, at a result of which every `share`th row is two ulps off.
fn compared<T: TestElement>(case: &Case, share: usize) -> Result<(), Failure> {
    let (inputs, rows) = (Inputs::<T>::draw(case), judged_rows(case));
    let mut got = computed(case, &inputs, &rows);
    for row in got.o.chunks_exact_mut(case.head_dim).step_by(share) {
        let ulp = 2.0 * half_ulp::<T>(max_abs(row));
        row.iter_mut().for_each(|x| *x = T::from_f32(x.to_f32() + 2.0 * ulp as f32));
    }
    Comparison::new(case, &inputs, &rows, &got)?.compare_with_tiled(&mut Judgement::default())
}

#[test]
fn other_roundings_than_the_models_are_noticed() {
    for dtype in ElementType::ALL {
        let case = usual(dtype);
        with_element!(dtype, T => {
            compared::<T>(&case, 10).expect_err("a tenth of the rows is off");
            compared::<T>(&case, usize::MAX).expect("one row may be");
        });
    }
}

#[test]
fn a_lost_key_is_noticed() {
    for dtype in ElementType::ALL {
        let case = usual(dtype);
        let lost = with_element!(dtype, T => {
            let (inputs, rows) = (Inputs::<T>::draw(&case), judged_rows(&case));
            let mut fewer = inputs.clone();
            let head = case.head_dim * case.num_heads_k;
            fewer.k.truncate(999 * head);
            fewer.v.truncate(999 * head);
            let got = computed(&Case { seqlen_k: 999, ..case.clone() }, &fewer, &rows);
            judge(&case, &inputs, &rows, &got)
        });
        lost.unwrap_err();
    }
}

#[test]
fn a_mask_off_by_one_is_noticed() {
    let case = Case::new(ElementType::Bf16, 64, 50, 100).causal(true);
    let (inputs, rows) = (Inputs::<bf16>::draw(&case), judged_rows(&case));
    let shifted: Vec<Row> = rows.iter().map(|row| Row { position: (row.position + 1).min(49), ..*row }).collect();
    // Each row with its own query, but the mask of the next one.
    let mut later = inputs.clone();
    later.q.rotate_right(64);
    let got = computed(&case, &later, &shifted);
    judge(&case, &inputs, &rows, &got).unwrap_err();
}

#[test]
fn nan_must_reach_its_rows_and_no_other() {
    let mut case = Case::new(ElementType::F16, 64, 40, 200).causal(true);
    case.edits.push(Edit::one(Operand::K, 180, 3, Number::Nan));
    let judged = judge_computed::<f16>(&case, |_| ()).unwrap();
    assert_eq!(judged.rows, 40);
    judge_computed::<f16>(&case, |got| got.o[39 * 64] = f16::ZERO).unwrap_err();
    judge_computed::<f16>(&case, |got| got.o[0] = f16::NAN).unwrap_err();
    judge_computed::<f16>(&case, |got| got.lse[39] = 0.0).unwrap_err();
}

#[test]
fn samples_hold_the_ends_and_stay_small() {
    let case = Case::new(ElementType::F16, 64, 10_000, 10_000).heads(2, 3, 1).judging_pairs(1 << 22);
    let rows = judged_rows(&case);
    assert!((200..=450).contains(&rows.len()), "{}", rows.len());
    assert_eq!(rows[0], Row { batch_idx: 0, head_idx: 0, position: 0 });
    assert_eq!(*rows.last().unwrap(), Row { batch_idx: 1, head_idx: 2, position: 9999 });
    let edges = rows.iter().filter(|row| row.position % 64 == 0 || row.position % 64 == 63).count();
    assert!(edges * 8 >= rows.len(), "{edges} of {}", rows.len());
}
