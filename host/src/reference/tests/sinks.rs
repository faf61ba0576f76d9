//! Sinks: a logit a head that joins the denominator.

use super::definition::{Data, Logit, NUM_HEADS, by_definition, check};
use super::*;
use crate::reference::tiled::TANH_ERROR;
use hopper_attention_kernels::config::{ScoreFunction, general_config};

const SINKS: [f32; NUM_HEADS] = [0.25, -3.0, 6.5, f32::NEG_INFINITY];

#[test]
fn sinks_join_the_denominator() {
    for (seqlen_q, seqlen_k) in [(70, 130), (130, 70), (5, 5), (9, 0)] {
        let data = Data::of_lengths(seqlen_q, seqlen_k, 1.0);
        // Half of the rows of (130, 70) see nothing.
        for (causal, right) in [(false, None), (true, None), (false, Some(7))] {
            let visible = |diagonal, key| right.is_none_or(|right| key - diagonal <= right) && (!causal || key <= diagonal);
            let problem = data.problem().causal(causal).window(None, right.map(|right| right as usize)).sinks(&SINKS).unwrap();
            check(problem, &by_definition(&problem, SINKS, |l| visible(l.diagonal, l.key).then_some(l.s)), 0.0);

            let slopes = [0.125; NUM_HEADS];
            let biased = problem.alibi_slopes(&slopes).unwrap();
            let score = |l: Logit| visible(l.diagonal, l.key).then_some(l.s - 0.125 * (l.diagonal - l.key).abs() as f64);
            check(biased, &by_definition(&biased, SINKS, score), 0.0);

            // The cap is below a sink, which it does not bound.
            let capped = problem.softcap(2.0).unwrap();
            let score = |l: Logit| visible(l.diagonal, l.key).then_some(2.0 * (l.s / 2.0).tanh());
            check(capped, &by_definition(&capped, SINKS, score), TANH_ERROR);
        }
    }
}

#[test]
fn a_row_that_sees_nothing_has_its_sink() {
    let expected_lse: Vec<f64> = SINKS.iter().flat_map(|&sink| [f64::from(sink); 6]).collect();
    // No keys; keys of -inf, whose V is not taken.
    for seqlen_k in [0, 20] {
        let (q, k) = (values::<f16>(&[1.0; 6 * NUM_HEADS]), values(&vec![f32::NEG_INFINITY; seqlen_k]));
        let v = values(&vec![5.0; seqlen_k]);
        let q = HostTensor::new(&q, Layout::bshd([1, 6, NUM_HEADS, 1])).unwrap();
        let keys = |data| HostTensor::new(data, Layout::bshd([1, seqlen_k, 1, 1])).unwrap();
        let problem = Problem::new(q, keys(&k), keys(&v)).unwrap();
        check_all(problem.sinks(&SINKS).unwrap(), &[0.0; 6 * NUM_HEADS], &expected_lse, 0.0);
        check_all(problem, &[0.0; 6 * NUM_HEADS], &[NEVER; 6 * NUM_HEADS], 0.0);
    }
    // Without a number in V, either.
    let (q, nan) = (values::<f16>(&[1.0; 2]), values(&[f32::NAN]));
    let key = HostTensor::new(&nan, Layout::bshd([1, 1, 1, 1])).unwrap();
    let problem = Problem::new(HostTensor::new(&q, Layout::bshd([1, 2, 1, 1])).unwrap(), key, key).unwrap().causal(true);
    let exact = exact::attention(&problem.sinks(&[1.5]).unwrap());
    assert_eq!((exact.o[0], exact.lse[0]), (0.0, 1.5));
    assert!(exact.o[1].is_nan() && exact.lse[1].is_nan());
}

#[test]
fn sinks_of_any_size() {
    let (q, v) = (values::<f16>(&[1.0]), values(&[1.0, 3.0]));
    for logit in [-1e4, 0.0, 1e4] {
        let k = values(&[logit, logit]);
        let keys = |data| HostTensor::new(data, Layout::bshd([1, 2, 1, 1])).unwrap();
        let problem = Problem::new(HostTensor::new(&q, Layout::bshd([1, 1, 1, 1])).unwrap(), keys(&k), keys(&v)).unwrap();
        let (logit, two) = (f64::from(k[0].to_f32()), 2f64.ln());
        for (sink, o, lse) in [
            (logit as f32, 4.0 / 3.0, logit + 3f64.ln()),
            (logit as f32 + 1e4, 0.0, logit + 1e4),
            (logit as f32 - 1e4, 2.0, logit + two),
            (f32::NEG_INFINITY, 2.0, logit + two),
        ] {
            check_all(problem.sinks(&[sink]).unwrap(), &[o], &[lse], 1e-3);
        }
    }
}

#[test]
fn a_sink_of_minus_infinity_changes_no_bit() {
    let data = Data::of_lengths(130, 70, 2.0);
    let config = general_config(64, 64, ScoreFunction::Identity).unwrap();
    let tiled = |problem| tiled::with_config(problem, &config, &all_rows(problem));
    let none = data.problem().causal(true);
    let no_sink = none.sinks(&[f32::NEG_INFINITY; NUM_HEADS]).unwrap();
    assert_eq!((exact::attention(&no_sink), tiled(&no_sink)), (exact::attention(&none), tiled(&none)));
}

#[test]
fn a_sink_without_a_finite_value_makes_its_head_nan() {
    // The first query sees nothing.
    let data = Data::of_lengths(3, 2, 1.0);
    for sink in [f32::NAN, f32::INFINITY] {
        let sinks = [0.0, 0.0, sink, 0.0];
        let problem = data.problem().causal(true).sinks(&sinks).unwrap();
        let (exact, tiled) = (exact::attention(&problem), tiled::attention(&problem).unwrap());
        let nan = |head_idx: usize| head_idx == 2;
        assert!((0..3 * NUM_HEADS).all(|row| exact.lse[row].is_nan() == nan(row / 3) && tiled.lse[row].is_nan() == nan(row / 3)));
        let heads = (0..exact.o.len()).map(|i| i / 8 % NUM_HEADS);
        assert!(heads.zip(exact.o.iter().zip(&tiled.o)).all(|(head, (e, t))| e.is_nan() == nan(head) && t.is_nan() == nan(head)));
    }
}
