//! Windows, and V of another head_dim than Q and K.

use super::definition::{Data, Logit, NO_SINKS, Shape, by_definition, check};
use super::*;
use hopper_attention_kernels::config::{ScoreFunction, general_config};

fn sees(causal: bool, left: Option<usize>, right: Option<usize>, diagonal: i64, key: i64) -> bool {
    (!causal || key <= diagonal)
        && left.is_none_or(|left| i128::from(diagonal - key) <= left as i128)
        && right.is_none_or(|right| i128::from(key - diagonal) <= right as i128)
}

#[test]
fn windows_are_aligned_to_the_bottom_right() {
    let sides = [None, Some(0), Some(3), Some(40), Some(1000), Some(usize::MAX)];
    for (seqlen_q, seqlen_k) in [(70, 130), (130, 70), (9, 9), (1, 20), (20, 1), (9, 0)] {
        let data = Data::of_lengths(seqlen_q, seqlen_k, 1.0);
        for (left, right, causal) in sides.iter().flat_map(|&l| sides.iter().flat_map(move |&r| [false, true].map(|c| (l, r, c)))) {
            let problem = data.problem().window(left, right).causal(causal);
            for position in 0..seqlen_q {
                let diagonal = position as i64 + seqlen_k as i64 - seqlen_q as i64;
                let visible: Vec<usize> = (0..seqlen_k).filter(|&key| sees(causal, left, right, diagonal, key as i64)).collect();
                assert_eq!(problem.visible_keys(position).collect::<Vec<_>>(), visible);
            }
            let score = |logit: Logit| sees(causal, left, right, logit.diagonal, logit.key).then_some(logit.s);
            check(problem, &by_definition(&problem, NO_SINKS, score), 0.0);
        }
    }
}

#[test]
fn a_window_that_hides_nothing_changes_no_bit() {
    let data = Data::of_lengths(150, 300, 2.0);
    let general = |head_dim| general_config(head_dim, head_dim, ScoreFunction::Identity).unwrap();
    for (causal, config) in [(false, general(64)), (true, general(256)), (false, small_tiles(false))] {
        let open = data.problem().causal(causal);
        let windows = [(Some(299), Some(149)), (Some(300), None), (None, Some(300)), (Some(usize::MAX), Some(usize::MAX))];
        for (left, right) in windows {
            let windowed = open.window(left, right);
            assert_eq!(exact::attention(&windowed), exact::attention(&open));
            let tiled = |problem| tiled::with_config(problem, &config, &all_rows(problem));
            assert_eq!(tiled(&windowed), tiled(&open));
        }
    }
}

#[test]
fn nan_stays_in_the_tiles_that_are_visited() {
    // Key 100 is NaN in K or in V. Queries 64 to 127 see keys 54 to 130, those before and behind them not key 100 nor its tile of 8.
    let ones = values::<bf16>(&[1.0; 200]);
    let mut poisoned = ones.clone();
    poisoned[100] = bf16::NAN;
    let tensor = |data| HostTensor::new(data, Layout::bshd([1, 200, 1, 1])).unwrap();
    let rows_where = |is_nan: &dyn Fn(usize) -> bool| (0..200).filter(|&row| is_nan(row)).collect::<Vec<_>>();
    for (k, v) in [(&poisoned, &ones), (&ones, &poisoned)] {
        let problem = Problem::new(tensor(&ones), tensor(k), tensor(v)).unwrap().window(Some(10), Some(3));
        let exact = exact::attention(&problem);
        let tiled = tiled::with_config(&problem, &small_tiles(false), &all_rows(&problem));
        let by_visibility: Vec<usize> = (97..=110).collect();
        let (in_k, in_v) = (k[100].is_nan(), v[100].is_nan());
        assert_eq!(rows_where(&|row| exact.o[row].is_nan()), by_visibility);
        assert_eq!(rows_where(&|row| tiled.o[row].is_nan()), if in_v { (64..128).collect() } else { by_visibility.clone() });
        assert_eq!(rows_where(&|row| tiled.lse[row].is_nan()), if in_k { by_visibility } else { vec![] });
    }
}

/// Whether a kernel is plain has nothing to do with its head dims.
#[test]
fn tiles_are_those_of_the_kernel() {
    // Of Q, of V, and keys of a tile: full, causal, with a window, with a soft cap.
    for (head_dim, head_dim_v, tiles) in [
        (64, 64, [128, 128, 112, 112]),
        (96, 64, [112, 96, 96, 96]),
        (64, 96, [112, 96, 96, 96]),
        (128, 40, [128, 64, 64, 64]),
        (192, 128, [128, 128, 128, 80]),
        (136, 8, [128, 128, 128, 80]),
        (192, 136, [80, 80, 80, 80]),
        (128, 192, [80, 80, 80, 80]),
        (8, 256, [64, 64, 64, 64]),
    ] {
        let data = Data::new(Shape { seqlen_q: 1, seqlen_k: 1, head_dim, head_dim_v }, 1.0);
        let problem = data.problem();
        let of_kind = [problem, problem.causal(true), problem.window(Some(5), None), problem.softcap(1.0).unwrap()];
        assert_eq!(of_kind.map(|problem| tiled::config_of(&problem).unwrap().tile_n), tiles, "{head_dim}, {head_dim_v}");
    }
}

#[test]
fn o_has_the_head_dim_of_v() {
    for (head_dim, head_dim_v) in [(192, 128), (64, 128), (128, 64), (96, 64), (8, 256), (40, 1), (1, 24)] {
        let data = Data::new(Shape { seqlen_q: 70, seqlen_k: 90, head_dim, head_dim_v }, 1.0);
        for causal in [false, true] {
            let problem = data.problem().causal(causal);
            let score = |logit: Logit| sees(causal, None, None, logit.diagonal, logit.key).then_some(logit.s);
            check(problem, &by_definition(&problem, NO_SINKS, score), 0.0);
            let rows = [Row { batch_idx: 0, head_idx: 3, position: 69 }];
            assert_eq!(tiled::attention_rows(&problem, &rows).unwrap().o.len(), head_dim_v);
        }
    }
}
