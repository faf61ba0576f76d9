//! Soft cap and ALiBi.

use super::definition::{Data, Logit, NO_SINKS, NUM_HEADS, by_definition, check};
use super::*;
use crate::reference::tiled::TANH_ERROR;

const SLOPES: [f32; NUM_HEADS] = [0.5, 0.0625, 0.0, -0.03];
const LENGTHS: [(usize, usize); 4] = [(70, 130), (130, 70), (5, 5), (1, 40)];

#[test]
fn capped_logits() {
    for (seqlen_q, seqlen_k) in LENGTHS {
        let data = Data::of_lengths(seqlen_q, seqlen_k, 4.0);
        for (cap, causal, left) in
            [(0.5f32, false, None), (5.0, true, None), (5.0, true, Some(9)), (50.0, false, Some(9)), (1e30, true, None)]
        {
            let problem = data.problem().causal(causal).window(left, None).softcap(cap).unwrap();
            let expected = by_definition(&problem, NO_SINKS, |Logit { diagonal, key, s, .. }| {
                let visible = (!causal || key <= diagonal) && left.is_none_or(|left: usize| diagonal - key <= left as i64);
                visible.then_some(f64::from(cap) * (s / f64::from(cap)).tanh())
            });
            check(problem, &expected, TANH_ERROR);
        }
    }
}

#[test]
fn a_cap_bounds_logits_of_any_size() {
    // tanh is exactly 1 or -1, of infinities too.
    let q = values::<bf16>(&[1.0]);
    let v = values(&[1.0, 0.0]);
    let (high, low) = (3f64.exp(), (-3f64).exp());
    for size in [100.0, 1e30, f32::INFINITY] {
        let k = values(&[size, -size]);
        let keys = |data| HostTensor::new(data, Layout::bshd([1, 2, 1, 1])).unwrap();
        let problem = Problem::new(HostTensor::new(&q, Layout::bshd([1, 1, 1, 1])).unwrap(), keys(&k), keys(&v)).unwrap();
        check_all(problem.softcap(3.0).unwrap(), &[high / (high + low)], &[(high + low).ln()], 1e-2);
    }
    let k = values(&[f32::NAN, 0.0]);
    let keys = |data| HostTensor::new(data, Layout::bshd([1, 2, 1, 1])).unwrap();
    let problem = Problem::new(HostTensor::new(&q, Layout::bshd([1, 1, 1, 1])).unwrap(), keys(&k), keys(&v)).unwrap();
    let problem = problem.softcap(3.0).unwrap();
    assert!(exact::attention(&problem).lse[0].is_nan() && tiled::attention(&problem).unwrap().lse[0].is_nan());
}

#[test]
fn the_fast_tanh_errs_up_to_its_bound() {
    let mut largest = 0.0f64;
    for i in 1..200_000 {
        let x = 1e-5 * 1.00008f32.powi(i);
        let (got, expected) = (f64::from(tiled::tanh(x)), f64::from(x).tanh());
        let error = (expected - got) / expected;
        // Never larger than tanh, but for the rounding of f32's own.
        assert!((-f64::from(f32::EPSILON)..=TANH_ERROR).contains(&error), "tanh({x}) = {got}, exactly {expected}");
        assert_eq!(tiled::tanh(-x), -tiled::tanh(x));
        largest = largest.max(error);
    }
    assert!(largest > 0.99 * TANH_ERROR);
    assert_eq!([f32::INFINITY, f32::NEG_INFINITY, 0.0].map(tiled::tanh), [1.0, -1.0, 0.0]);
    assert!(tiled::tanh(f32::NAN).is_nan());
}

#[test]
fn biases_grow_with_the_distance_from_the_diagonal() {
    for (seqlen_q, seqlen_k) in LENGTHS {
        let data = Data::of_lengths(seqlen_q, seqlen_k, 1.0);
        for (causal, left) in [(false, None), (true, None), (false, Some(30)), (true, Some(3))] {
            let problem = data.problem().causal(causal).window(left, None).alibi_slopes(&SLOPES).unwrap();
            let expected = by_definition(&problem, NO_SINKS, |Logit { head_idx, diagonal, key, s }| {
                let visible = (!causal || key <= diagonal) && left.is_none_or(|left: usize| diagonal - key <= left as i64);
                visible.then_some(s - f64::from(SLOPES[head_idx]) * (diagonal - key).abs() as f64)
            });
            check(problem, &expected, 0.0);
        }
        let level = data.problem().alibi_slopes(&[0.0; NUM_HEADS]).unwrap();
        assert_eq!(exact::attention(&level), exact::attention(&data.problem()));
    }
}
