//! Which kernel each combination gets, and what it is told of window and scores.

use std::f64::consts::LOG2_E;

use hopper_attention_kernels::config::{FORWARD, ScoreFunction, forward_config, general_config, general_shapes};
use hopper_attention_kernels::params::MAX_SEQLEN;

use super::tests::Arguments;
use super::*;
use crate::Layout;

pub(super) const SINKS: u64 = 0x6_0000_0000;
pub(super) const SLOPES: u64 = 0x6_1000_0000;

const FULL: Family = Family::Plain { causal: false };
const CAUSAL: Family = Family::Plain { causal: true };
const GENERAL: Family = Family::General(ScoreFunction::Identity);

/// 300 queries, 500 keys.
fn windowed(left: Option<usize>, right: Option<usize>) -> Arguments {
    Arguments::new().with(|a| a.options = a.options.window(left, right))
}

fn sinks(a: &mut Arguments) {
    a.arrays.sinks = Some(Array { address: SINKS, len: 6 });
}

fn slopes(a: &mut Arguments) {
    a.arrays.alibi_slopes = Some(Array { address: SLOPES, len: 6 });
}

fn softcap(a: &mut Arguments) {
    a.options = a.options.softcap(30.0);
}

#[test]
fn every_combination_has_its_kernel() {
    let causal = |a: &mut Arguments| a.options.causal = true;
    let nothing = |_: &mut Arguments| {};
    let (soft_cap, alibi) = (Family::General(ScoreFunction::SoftCap), Family::General(ScoreFunction::Alibi));
    type Change = fn(&mut Arguments);
    let table: [(Change, Change, Family); 9] = [
        (nothing, nothing, FULL),
        (causal, nothing, CAUSAL),
        (sinks, nothing, GENERAL),
        (sinks, causal, GENERAL),
        (softcap, nothing, soft_cap),
        (softcap, causal, soft_cap),
        (softcap, sinks, soft_cap),
        (slopes, causal, alibi),
        (slopes, sinks, alibi),
    ];
    for (i, (one, other, family)) in table.into_iter().enumerate() {
        let plan = Arguments::new().with(one).with(other).accepted();
        assert_eq!((plan.family, plan.features.is_some()), (family, !matches!(family, Family::Plain { .. })), "row {i}");
        assert_eq!(plan.config, family.config(128, 128), "row {i}");
    }
    // A window takes the plain kernels, and changes no score function.
    for (change, family) in [(nothing as Change, GENERAL), (sinks, GENERAL), (softcap, soft_cap), (slopes, alibi)] {
        assert_eq!(windowed(Some(7), None).with(change).accepted().family, family);
    }
    Arguments::new().with(softcap).with(slopes).is_unsupported("softcap");
    let error = Arguments::new().with(softcap).with(slopes).plan().unwrap_err().to_string();
    assert!(error.contains("30 together with alibi_slopes") && error.contains("not both together"), "{error}");
}

#[test]
fn bounds_that_hide_nothing_are_none() {
    for (left, right, family) in [
        (Some(499), Some(299), FULL),
        (Some(usize::MAX), Some(usize::MAX), FULL),
        (None, Some(299), FULL),
        (Some(499), Some(0), CAUSAL),
        (None, Some(0), CAUSAL),
        (Some(498), None, GENERAL),
        (None, Some(298), GENERAL),
        (Some(498), Some(0), GENERAL),
        (Some(0), Some(0), GENERAL),
    ] {
        assert_eq!(windowed(left, right).accepted().family, family, "{left:?} {right:?}");
    }
    // With causal the smaller right bound holds.
    assert_eq!(windowed(Some(499), Some(7)).with(|a| a.options.causal = true).accepted().family, CAUSAL);
    let plan = windowed(Some(5), Some(7)).with(|a| a.options.causal = true).accepted();
    assert_eq!(window_params(&plan), [5, 0]);
    // A single query is causal if that is asked for, or else sees all.
    let one_query = Arguments::of(2, 1, 500, 6, 2, 128, Layout::bshd);
    assert_eq!(one_query.with(|a| a.options.causal = true).accepted().family, CAUSAL);
    assert_eq!(one_query.with(|a| a.options.window_right = Some(1)).accepted().family, FULL);
    // No keys, or one: nothing can be hidden on the left.
    for seqlen_k in [0, 1] {
        let few = Arguments::of(2, 300, seqlen_k, 6, 2, 128, Layout::bshd);
        assert_eq!(few.with(|a| a.options.window_left = Some(0)).accepted().family, FULL);
    }
}

fn window_params(plan: &Plan) -> [u32; 2] {
    plan.features.map(|features| [features.window_left, features.window_right]).expect("a general kernel")
}

#[test]
fn windows_as_the_kernels_take_them() {
    for (left, right, expected) in [
        (Some(498), None, [498, MAX_SEQLEN]),
        (Some(7), Some(299), [7, MAX_SEQLEN]),
        (Some(usize::MAX), Some(298), [MAX_SEQLEN, 298]),
        (Some(0), Some(1), [0, 1]),
    ] {
        assert_eq!(window_params(&windowed(left, right).accepted()), expected, "{left:?} {right:?}");
    }
    assert_eq!(window_params(&Arguments::new().with(sinks).accepted()), [MAX_SEQLEN; 2]);
    // Nothing that the lengths allow exceeds what the kernels take.
    let wide = Window { left: Some(MAX_SEQLEN as usize + 1), right: Some(1 << 40) };
    assert_eq!(wide.as_params(), [MAX_SEQLEN; 2]);
}

#[test]
fn scales() {
    let scales = |change: &dyn Fn(&mut Arguments)| {
        let plan = Arguments::new().with(|a| a.options.softmax_scale = Some(0.1)).with(change).accepted();
        (plan.features.map(|features| features.score_scale), plan.params.softmax_scale_log2)
    };
    let scale = f64::from(0.1f32);
    assert_eq!(scales(&|_| ()), (None, (scale * LOG2_E) as f32));
    assert_eq!(scales(&sinks), (Some(1.0), (scale * LOG2_E) as f32));
    assert_eq!(scales(&slopes), (Some(0.1), LOG2_E as f32));
    assert_eq!(scales(&softcap), (Some((scale / 30.0) as f32), (30.0 * LOG2_E) as f32));
    // Of the head_dim of Q and K.
    let plan = Arguments::new().with(softcap).accepted();
    assert_eq!(plan.features.unwrap().score_scale, (f64::from((1.0 / 128f64.sqrt()) as f32) / 30.0) as f32);
}

#[test]
fn soft_caps() {
    let cap = |cap| Arguments::new().with(|a| a.options.softcap = Some(cap));
    for legal in [1.0, 50.0, 1e-30, 1e36] {
        cap(legal).accepted();
    }
    // The last three: times log2(e), or the scale by it, is beyond f32, or subnormal in it.
    for illegal in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, 1e-40, 1e37] {
        cap(illegal).is_invalid("softcap");
    }
    cap(1e30).with(|a| a.options.softmax_scale = Some(1e-20)).is_invalid("softcap");
    cap(30.0).with(|a| a.options.softmax_scale = Some(f32::NAN)).is_invalid("softmax_scale");
}

#[test]
fn unequal_head_dims() {
    let problem = |head_dim, head_dim_v| {
        Arguments::of(2, 300, 500, 6, 2, head_dim, Layout::bshd).with(|a| {
            a.v.layout = Layout::bshd([2, 500, 2, head_dim_v]);
            a.o.layout = Layout::bshd([2, 300, 6, head_dim_v]);
        })
    };
    for (head_dim, head_dim_v, kernel) in [
        (192, 128, (192, 128)),
        (136, 8, (192, 128)),
        (192, 136, (192, 192)),
        (128, 192, (192, 192)),
        (64, 128, (128, 128)),
        (128, 64, (128, 128)),
        (96, 64, (96, 96)),
        (8, 256, (256, 256)),
        (72, 104, (128, 128)),
    ] {
        for causal in [false, true] {
            let problem = problem(head_dim, head_dim_v).with(|a| a.options.causal = causal);
            let plan = problem.accepted();
            assert_eq!((plan.family, plan.config), (Family::Plain { causal }, forward_config(kernel.0, kernel.1, causal).unwrap()));
            assert_eq!((plan.config.head_dim, plan.config.head_dim_v), kernel);
            let inner = plan.maps.map(|map| map.unwrap().dims[0] as usize);
            assert_eq!(inner, [head_dim, head_dim, head_dim_v, head_dim_v]);
            assert_eq!(plan.params.softmax_scale_log2, (f64::from((1.0 / (head_dim as f64).sqrt()) as f32) * LOG2_E) as f32);
            let general = |scores| general_config(kernel.0, kernel.1, scores).unwrap();
            assert_eq!(problem.with(sinks).accepted().config, general(ScoreFunction::Identity));
            assert_eq!(problem.with(softcap).accepted().config, general(ScoreFunction::SoftCap));
            assert_eq!(problem.with(slopes).accepted().config, general(ScoreFunction::Alibi));
        }
    }
    problem(64, 264).is_unsupported("v.head_dim");
    problem(64, 4).is_unsupported("v.head_dim");
    problem(264, 64).is_unsupported("q.head_dim");
    problem(64, 128).with(|a| a.o.layout = Layout::bshd([2, 300, 6, 64])).is_invalid("o.head_dim");
}

/// Every pair of head dims runs, in every family, on a shape that holds both, and than which none that does is smaller in either.
#[test]
fn every_pair_of_head_dims_has_the_smallest_kernel_that_holds_it() {
    let nothing: fn(&mut Arguments) = |_| {};
    let plain = [false, true].map(|causal| (FORWARD.into_iter().filter(|shape| shape.causal == causal).collect(), nothing, causal));
    let general = ScoreFunction::ALL.map(|scores| {
        let change = match scores {
            ScoreFunction::Identity => sinks,
            ScoreFunction::SoftCap => softcap,
            ScoreFunction::Alibi => slopes,
        };
        (general_shapes(scores).to_vec(), change, false)
    });
    let sizes = || (8..=256).step_by(8);
    for (shapes, change, causal) in plain.into_iter().chain(general) {
        for (head_dim, head_dim_v) in sizes().flat_map(|head_dim| sizes().map(move |head_dim_v| (head_dim, head_dim_v))) {
            let problem = Arguments::of(2, 300, 500, 6, 2, head_dim, Layout::bshd).with(change).with(|a| {
                a.options.causal = causal;
                a.v.layout = Layout::bshd([2, 500, 2, head_dim_v]);
                a.o.layout = Layout::bshd([2, 300, 6, head_dim_v]);
            });
            let chosen = problem.accepted().config;
            let holds = |shape: &&TileConfig| shape.head_dim as usize >= head_dim && shape.head_dim_v as usize >= head_dim_v;
            assert!(shapes.contains(&chosen) && holds(&&chosen), "{head_dim}, {head_dim_v}: {chosen:?}");
            let is_smaller = |shape: &&TileConfig| shape.head_dim < chosen.head_dim || shape.head_dim_v < chosen.head_dim_v;
            assert_eq!(shapes.iter().filter(holds).find(is_smaller), None, "{head_dim}, {head_dim_v}: {chosen:?}");
        }
    }
}
