//! The references against closed forms, and against each other.

mod definition;
mod score;
mod sinks;
mod window;

use super::*;
use crate::{Dim, Element, Error, Layout};
use half::{bf16, f16};
use hopper_attention_kernels::config::{TileConfig, forward_config};

/// A tile small enough that a few keys make several of them.
fn small_tiles(causal: bool) -> TileConfig {
    TileConfig { tile_m: 4, tile_n: 8, ..forward_config(64, 64, causal).unwrap() }
}

/// Normal values, the same for the same seed.
fn normal<T: Element>(seed: u64, count: usize, magnitude: f32) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 + 0.5) / (1u32 << 24) as f32
    };
    (0..count)
        .map(|_| {
            let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f32::consts::TAU * uniform());
            T::from_f32(magnitude * radius * angle.cos())
        })
        .collect()
}

fn values<T: Element>(values: &[f32]) -> Vec<T> {
    values.iter().map(|&value| T::from_f32(value)).collect()
}

fn all_rows<T: Element>(problem: &Problem<'_, T>) -> Vec<Row> {
    let [batch, seqlen_q, num_heads, _] = problem.q.shape();
    let rows = |batch_idx, head_idx| (0..seqlen_q).map(move |position| Row { batch_idx, head_idx, position });
    (0..batch).flat_map(|batch_idx| (0..num_heads).flat_map(move |head_idx| rows(batch_idx, head_idx))).collect()
}

fn close(got: f64, expected: f64, relative: f64) {
    let within = (got - expected).abs() <= relative * expected.abs().max(1.0);
    assert!(got == expected || within, "{got}, expected {expected}");
}

/// `exact`, and `tiled` with the table's tiles and with small ones, all within `relative` of the same values.
fn check_all<T: Element>(problem: Problem<'_, T>, expected_o: &[f64], expected_lse: &[f64], relative: f64) {
    let exact = exact::attention(&problem);
    assert_eq!((exact.o.len(), exact.lse.len()), (expected_o.len(), expected_lse.len()));
    exact.o.iter().zip(expected_o).for_each(|(&got, &expected)| close(got, expected, 1e-6));
    exact.lse.iter().zip(expected_lse).for_each(|(&got, &expected)| close(got, expected, 1e-6));
    let small = rows::all(&problem, |rows| tiled::with_config(&problem, &small_tiles(problem.causal), rows));
    for tiled in [tiled::attention(&problem).unwrap(), small] {
        tiled.o.iter().zip(expected_o).for_each(|(&got, &expected)| close(got.to_f32().into(), expected, relative));
        tiled.lse.iter().zip(expected_lse).for_each(|(&got, &expected)| close(got.into(), expected, 1e-5));
    }
}

const NEVER: f64 = f64::NEG_INFINITY;

#[test]
fn one_key_is_its_value() {
    let (q, k, v) = (values::<f16>(&[3.0, 1.0]), values(&[0.5, 2.0]), values(&[-7.0, 0.25]));
    let shape = [1, 1, 1, 2];
    let tensor = |data| HostTensor::new(data, Layout::bshd(shape)).unwrap();
    let problem = Problem::new(tensor(&q), tensor(&k), tensor(&v)).unwrap().softmax_scale(0.5).unwrap();
    check_all(problem, &[-7.0, 0.25], &[1.75], 0.0);
}

#[test]
fn equal_keys_give_the_mean() {
    // 16 keys of the same logit 2; V counts upwards.
    let (q, k) = (values::<bf16>(&[2.0]), values(&[1.0; 16]));
    let v: Vec<bf16> = (0..16).map(|j| bf16::from_f32(j as f32)).collect();
    let keys = |data| HostTensor::new(data, Layout::bshd([1, 16, 1, 1])).unwrap();
    let problem = Problem::new(HostTensor::new(&q, Layout::bshd([1, 1, 1, 1])).unwrap(), keys(&k), keys(&v)).unwrap();
    check_all(problem, &[7.5], &[2.0 + 16f64.ln()], 0.0);
}

#[test]
fn causal_is_aligned_to_the_bottom_right() {
    // Equal logits of 0, so that O is the mean of the visible V = 1, 2, 3, ...
    let zeros = values::<f16>(&[0.0; 5]);
    let v = values(&[1.0, 2.0, 3.0, 4.0, 5.0]);
    let mean_of = |keys: usize| if keys == 0 { (0.0, NEVER) } else { ((keys + 1) as f64 / 2.0, (keys as f64).ln()) };
    for (seqlen_q, seqlen_k, visible) in [(2, 5, &[4, 5][..]), (5, 2, &[0, 0, 0, 1, 2]), (3, 3, &[1, 2, 3]), (5, 0, &[0; 5])] {
        let q = HostTensor::new(&zeros, Layout::bshd([1, seqlen_q, 1, 1])).unwrap();
        let keys = |data| HostTensor::new(data, Layout::bshd([1, seqlen_k, 1, 1])).unwrap();
        let (o, lse): (Vec<f64>, Vec<f64>) = visible.iter().map(|&keys| mean_of(keys)).unzip();
        check_all(Problem::new(q, keys(&zeros), keys(&v)).unwrap().causal(true), &o, &lse, 1e-3);
    }
}

#[test]
fn weights_by_hand() {
    // Logits 0, ln 2, ln 4 through the scale: weights 1 : 2 : 4.
    let (q, k, v) = (values::<f16>(&[1.0; 3]), values(&[0.0, 1.0, 2.0]), values(&[7.0, 14.0, 28.0]));
    let tensor = |data| HostTensor::new(data, Layout::bshd([1, 3, 1, 1])).unwrap();
    let problem = Problem::new(tensor(&q), tensor(&k), tensor(&v)).unwrap().softmax_scale(std::f32::consts::LN_2).unwrap();
    check_all(problem, &[21.0; 3], &[7f64.ln(); 3], 1e-3);
    let causal = [7.0, (7.0 + 28.0) / 3.0, 21.0];
    check_all(problem.causal(true), &causal, &[0.0, 3f64.ln(), 7f64.ln()], 1e-3);
}

#[test]
fn finite_logits_of_any_sign_are_no_mask() {
    for logit in [1e6, 3e9, 1e30, -1e6, -3e9, -1e30] {
        // Both keys have the same large logit, beside one that is lower by far.
        let (q, k, v) =
            (values::<bf16>(&[1.0, 1.0]), values(&[1.0, 0.0, 1.0, 0.0, 1.0, -1.0]), values(&[1.0, 2.0, 3.0, 4.0, 100.0, 100.0]));
        let q = HostTensor::new(&q, Layout::bshd([1, 1, 1, 2])).unwrap();
        let keys = |data| HostTensor::new(data, Layout::bshd([1, 3, 1, 2])).unwrap();
        let problem = Problem::new(q, keys(&k), keys(&v)).unwrap();
        if logit > 0.0 {
            check_all(problem.softmax_scale(logit).unwrap(), &[2.0, 3.0], &[f64::from(logit) + 2f64.ln()], 1e-3);
        } else {
            let negated = values(&[-1.0, -1.0]);
            let problem = Problem { q: HostTensor::new(&negated, Layout::bshd([1, 1, 1, 2])).unwrap(), ..problem };
            check_all(problem.softmax_scale(-logit).unwrap(), &[100.0, 100.0], &[0.0], 1e-3);
        }
    }
}

#[test]
fn stale_maximum_changes_nothing() {
    // The tile visited later exceeds the first by less than MAX_SUM lets stand (2^11, two keys of a tile being one lane's) or by more.
    for step in [1.0, 10.75, 11.25, 40.0] {
        let mut k = values::<f16>(&[0.0; 24]);
        k[..8].fill(f16::from_f32(2.0 * step));
        k[8..16].fill(f16::from_f32(step));
        let v: Vec<f16> = (0..24).map(|j| f16::from_f32((j / 8) as f32)).collect();
        let q = values(&[1.0]);
        let keys = |data| HostTensor::new(data, Layout::bshd([1, 24, 1, 1])).unwrap();
        let problem = Problem::new(HostTensor::new(&q, Layout::bshd([1, 1, 1, 1])).unwrap(), keys(&k), keys(&v)).unwrap();
        let problem = problem.softmax_scale(std::f32::consts::LN_2).unwrap();
        let (high, middle) = (f64::from(2.0 * step).exp2(), f64::from(step).exp2());
        let sum = high + middle + 1.0;
        check_all(problem, &[(middle + 2.0) / sum], &[(8.0 * sum).ln()], 1e-3);
    }
}

#[test]
fn two_halves_of_the_keys_merge_by_their_lse() {
    let (seqlen, head_dim) = (21, 24);
    let q = normal::<bf16>(1, seqlen * head_dim, 1.0);
    let k = normal::<bf16>(2, seqlen * head_dim, 1.0);
    let v = normal::<bf16>(3, seqlen * head_dim, 1.0);
    let queries = HostTensor::new(&q, Layout::bshd([1, seqlen, 1, head_dim])).unwrap();
    let of_keys = |from: usize, to: usize| {
        let keys = |data| HostTensor::new(data, Layout::bshd([1, to - from, 1, head_dim])).unwrap();
        exact::attention(&Problem::new(queries, keys(&k[from * head_dim..]), keys(&v[from * head_dim..])).unwrap())
    };
    let (whole, first, second) = (of_keys(0, seqlen), of_keys(0, 8), of_keys(8, seqlen));
    for row in 0..seqlen {
        let lse = (first.lse[row].exp() + second.lse[row].exp()).ln();
        close(lse, whole.lse[row], 1e-12);
        let (weight_first, weight_second) = ((first.lse[row] - lse).exp(), (second.lse[row] - lse).exp());
        for i in row * head_dim..(row + 1) * head_dim {
            close(weight_first * first.o[i] + weight_second * second.o[i], whole.o[i], 1e-12);
        }
    }
}

#[test]
fn grouped_heads_read_the_head_of_their_group() {
    // Two key heads, each broadcast to three query heads: the same as repeating K and V.
    let (seqlen, head_dim) = (6, 8);
    let q = normal::<f16>(1, 6 * seqlen * head_dim, 1.0);
    let k = normal::<f16>(2, 2 * seqlen * head_dim, 1.0);
    let v = normal::<f16>(3, 2 * seqlen * head_dim, 1.0);
    let repeat = |data: &[f16]| -> Vec<f16> {
        let position = |s: usize| (0..6).flat_map(move |h| (s * 2 + h / 3) * head_dim..(s * 2 + h / 3 + 1) * head_dim);
        (0..seqlen).flat_map(position).map(|i| data[i]).collect()
    };
    let (k_repeated, v_repeated) = (repeat(&k), repeat(&v));
    let queries = HostTensor::new(&q, Layout::bshd([1, seqlen, 6, head_dim])).unwrap();
    let grouped = |data| HostTensor::new(data, Layout::bshd([1, seqlen, 2, head_dim])).unwrap();
    let repeated = |data| HostTensor::new(data, Layout::bshd([1, seqlen, 6, head_dim])).unwrap();
    let with_groups = Problem::new(queries, grouped(&k), grouped(&v)).unwrap().causal(true);
    let without = Problem::new(queries, repeated(&k_repeated), repeated(&v_repeated)).unwrap().causal(true);
    assert_eq!(exact::attention(&with_groups), exact::attention(&without));
    assert_eq!(tiled::attention(&with_groups).unwrap(), tiled::attention(&without).unwrap());
}

#[test]
fn strides_and_broadcast() {
    let (batch, seqlen, heads, head_dim) = (2, 5, 3, 8);
    let data = normal::<f16>(4, batch * seqlen * heads * head_dim, 1.0);
    let bshd_layout = Layout::bshd([batch, seqlen, heads, head_dim]);
    let bshd = HostTensor::new(&data, bshd_layout).unwrap();
    let mut transposed = vec![f16::NAN; data.len()];
    for b in 0..batch {
        for h in 0..heads {
            for s in 0..seqlen {
                transposed[((b * heads + h) * seqlen + s) * head_dim..][..head_dim].copy_from_slice(bshd.row(b, s, h));
            }
        }
    }
    let bhsd = HostTensor::new(&transposed, Layout::bhsd([batch, seqlen, heads, head_dim])).unwrap();
    let expected = exact::attention(&Problem::new(bshd, bshd, bshd).unwrap());
    assert_eq!(exact::attention(&Problem::new(bhsd, bshd, bhsd).unwrap()), expected);

    let one_head = HostTensor::new(&data, Layout { strides: [0, heads * head_dim, 0], ..bshd_layout }).unwrap();
    let o = exact::attention(&Problem::new(one_head, one_head, one_head).unwrap()).o;
    assert!(o.chunks_exact(heads * head_dim).all(|heads| heads.chunks_exact(head_dim).all(|head| head == &heads[..head_dim])));
    assert_eq!(o[..o.len() / 2], o[o.len() / 2..]);
}

#[test]
fn nan_reaches_what_it_should() {
    // 8 queries and keys, tiles of 4 by 8: one key tile. Key 5 is NaN in K or in V.
    let seqlen = 8;
    let ones = values::<bf16>(&[1.0; 8]);
    let mut poisoned = ones.clone();
    poisoned[5] = bf16::NAN;
    let tensor = |data| HostTensor::new(data, Layout::bshd([1, seqlen, 1, 1])).unwrap();
    let nan_rows = |problem: Problem<'_, bf16>| {
        let exact = exact::attention(&problem);
        let tiled = tiled::with_config(&problem, &small_tiles(true), &all_rows(&problem));
        let in_exact: Vec<bool> = exact.o.iter().map(|o| o.is_nan()).collect();
        let in_tiled: Vec<bool> = tiled.o.iter().map(|o| o.is_nan()).collect();
        let in_lse: Vec<bool> = tiled.lse.iter().map(|lse| lse.is_nan()).collect();
        assert_eq!(exact.lse.iter().map(|lse| lse.is_nan()).collect::<Vec<_>>(), in_lse);
        (in_exact, in_tiled, in_lse)
    };
    let sees_key_5: Vec<bool> = (0..seqlen).map(|row| row >= 5).collect();
    let in_k = nan_rows(Problem::new(tensor(&ones), tensor(&poisoned), tensor(&ones)).unwrap().causal(true));
    assert_eq!(in_k, (sees_key_5.clone(), sees_key_5.clone(), sees_key_5.clone()));
    let in_v = nan_rows(Problem::new(tensor(&ones), tensor(&ones), tensor(&poisoned)).unwrap().causal(true));
    assert_eq!(in_v, (sees_key_5, vec![true; seqlen], vec![false; seqlen]));
    // Even a query that sees no key, if its tile visits the value; but then only O.
    let longer = HostTensor::new(&[bf16::ONE; 11], Layout::bshd([1, 11, 1, 1])).unwrap();
    let blind_rows = nan_rows(Problem::new(longer, tensor(&ones), tensor(&poisoned)).unwrap().causal(true));
    let of_rows = |is_nan: fn(usize) -> bool| (0..11).map(is_nan).collect::<Vec<_>>();
    assert_eq!(blind_rows, (of_rows(|row| row >= 8), of_rows(|_| true), of_rows(|_| false)));
    let only_row_5: Vec<bool> = (0..seqlen).map(|row| row == 5).collect();
    let in_q = nan_rows(Problem::new(tensor(&poisoned), tensor(&ones), tensor(&ones)).unwrap().causal(true));
    assert_eq!(in_q, (only_row_5.clone(), only_row_5.clone(), only_row_5));
}

#[test]
fn infinite_logits() {
    // Keys of -inf are not seen; a visible +inf makes the row NaN.
    let inf = f32::INFINITY;
    let (q, v) = (values::<f16>(&[1.0; 3]), values(&[1.0, 2.0, 3.0]));
    let of_keys = |k: &[f32]| {
        let k = values(k);
        let tensor = |data| HostTensor::new(data, Layout::bshd([1, 3, 1, 1])).unwrap();
        let problem = Problem::new(tensor(&q), tensor(&k), tensor(&v)).unwrap().causal(true);
        let exact = exact::attention(&problem);
        let tiled = tiled::attention(&problem).unwrap();
        for row in 0..3 {
            let (o, lse) = (tiled.o[row].to_f64(), f64::from(tiled.lse[row]));
            assert!(exact.o[row].is_nan() && o.is_nan() || (exact.o[row] - o).abs() < 1e-3, "row {row}: {o}");
            assert!(exact.lse[row].is_nan() && lse.is_nan() || exact.lse[row] == lse || (exact.lse[row] - lse).abs() < 1e-6);
        }
        exact
    };
    let unseen = of_keys(&[-inf, -inf, 0.0]);
    assert_eq!((unseen.o, unseen.lse), (vec![0.0, 0.0, 3.0], vec![NEVER, NEVER, 0.0]));
    let infinite = of_keys(&[0.0, inf, 0.0]);
    assert!(infinite.o[0] == 1.0 && infinite.o[1].is_nan() && infinite.o[2].is_nan() && infinite.lse[2].is_nan());
}

/// Rounding P and O to the element type costs each at most half a unit in the last place of max |V|.
fn agrees_with_exact<T: Element>(unit: f64) {
    for (seqlen_q, seqlen_k, head_dim, magnitude) in [(70, 300, 64, 1.0), (9, 130, 40, 8.0), (200, 200, 256, 3.0)] {
        for causal in [false, true] {
            let q = normal::<T>(5, 2 * seqlen_q * head_dim, magnitude);
            let k = normal::<T>(6, 2 * seqlen_k * head_dim, 1.0);
            let v = normal::<T>(7, 2 * seqlen_k * head_dim, 1.0);
            let keys = |data| HostTensor::new(data, Layout::bshd([2, seqlen_k, 1, head_dim])).unwrap();
            let q = HostTensor::new(&q, Layout::bshd([2, seqlen_q, 1, head_dim])).unwrap();
            let problem = Problem::new(q, keys(&k), keys(&v)).unwrap().causal(causal);
            let max_v = v.iter().map(|v| f64::from(v.to_f32()).abs()).fold(0.0, f64::max);
            let (exact, tiled) = (exact::attention(&problem), tiled::attention(&problem).unwrap());
            let error = exact.o.iter().zip(&tiled.o).map(|(exact, o)| (f64::from(o.to_f32()) - exact).abs()).fold(0.0, f64::max);
            assert!(error <= unit * max_v, "{error}");
            exact.lse.iter().zip(&tiled.lse).for_each(|(&exact, &lse)| close(lse.into(), exact, 1e-5));
        }
    }
}

#[test]
fn tiled_agrees_with_exact() {
    agrees_with_exact::<f16>(f64::from(f16::EPSILON));
    agrees_with_exact::<bf16>(f64::from(bf16::EPSILON));
}

#[test]
fn rows_are_those_of_the_whole() {
    let data = normal::<bf16>(8, 2 * 150 * 4 * 16, 1.0);
    let x = HostTensor::new(&data, Layout::bshd([2, 150, 4, 16])).unwrap();
    let problem = Problem::new(x, x, x).unwrap().causal(true);
    let rows: Vec<Row> = all_rows(&problem).into_iter().step_by(37).collect();
    let (whole, part) = (exact::attention(&problem), exact::attention_rows(&problem, &rows));
    let (whole_tiled, part_tiled) = (tiled::attention(&problem).unwrap(), tiled::attention_rows(&problem, &rows).unwrap());
    for (i, row) in rows.iter().enumerate() {
        let o = ((row.batch_idx * 150 + row.position) * 4 + row.head_idx) * 16;
        let lse = (row.batch_idx * 4 + row.head_idx) * 150 + row.position;
        assert_eq!((&part.o[i * 16..][..16], part.lse[i]), (&whole.o[o..][..16], whole.lse[lse]));
        assert_eq!((&part_tiled.o[i * 16..][..16], part_tiled.lse[i]), (&whole_tiled.o[o..][..16], whole_tiled.lse[lse]));
    }
}

#[test]
fn empty_problems_have_empty_results() {
    let nothing: [f16; 0] = [];
    for [batch, seqlen, heads] in [[0, 3, 2], [2, 0, 2], [2, 3, 0]] {
        let x = HostTensor::new(&nothing, Layout::bshd([batch, seqlen, heads, 64])).unwrap();
        let problem = Problem::new(x, x, x).unwrap();
        assert_eq!(exact::attention(&problem), Attention::default());
        assert_eq!(tiled::attention(&problem).unwrap(), Attention::default());
    }
}

#[test]
fn faults_name_field_and_value() {
    let data = [f16::ONE; 64];
    let fault = |error: Error| match error {
        Error::Invalid { field, value, .. } | Error::Unsupported { field, value, .. } => format!("{field} is {value}"),
        other => other.to_string(),
    };
    let beyond = [Layout::bshd([1, 9, 1, 8]), Layout { strides: [usize::MAX, 8, 8], ..Layout::bshd([2, 2, 2, 8]) }];
    for layout in beyond {
        assert_eq!(fault(HostTensor::new(&data, layout).unwrap_err()), "data.len is 64");
    }
    let tensor = |shape| HostTensor::new(&data, Layout::bshd(shape)).unwrap();
    let faults = [
        (tensor([1, 2, 3, 8]), tensor([1, 2, 2, 8]), tensor([1, 2, 2, 8]), "q.heads is 3"),
        (tensor([1, 2, 3, 8]), tensor([1, 2, 0, 8]), tensor([1, 2, 0, 8]), "q.heads is 3"),
        (tensor([1, 2, 2, 8]), tensor([1, 2, 2, 8]), tensor([1, 1, 2, 8]), "v.shape is [1, 1, 2, 8]"),
        (tensor([1, 2, 2, 8]), tensor([1, 2, 2, 16]), tensor([1, 2, 2, 16]), "k.shape is [1, 2, 2, 16]"),
        (tensor([1, 2, 2, 0]), tensor([1, 2, 2, 0]), tensor([1, 2, 2, 0]), "q.head_dim is 0"),
        (tensor([1, 2, 2, 8]), tensor([1, 2, 2, 8]), tensor([1, 2, 2, 0]), "v.head_dim is 0"),
    ];
    for (q, k, v, words) in faults {
        assert_eq!(fault(Problem::new(q, k, v).unwrap_err()), words);
    }
    let wide = vec![f16::ONE; 264];
    let x = HostTensor::new(&wide, Layout::bshd([1, 1, 1, 264])).unwrap();
    assert_eq!(fault(tiled::attention(&Problem::new(x, x, x).unwrap()).unwrap_err()), "q.head_dim is 264");
    let narrow = tensor([1, 1, 1, 8]);
    assert_eq!(fault(tiled::attention(&Problem::new(narrow, narrow, x).unwrap()).unwrap_err()), "v.head_dim is 264");

    let x = tensor([1, 2, 2, 8]);
    let problem = Problem::new(x, x, x).unwrap();
    for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert_eq!(fault(problem.softcap(cap).unwrap_err()), format!("softcap is {cap}"));
    }
    for values in [&[][..], &[1.0], &[1.0; 3]] {
        assert_eq!(fault(problem.alibi_slopes(values).unwrap_err()), format!("alibi_slopes.len is {}", values.len()));
        assert_eq!(fault(problem.sinks(values).unwrap_err()), format!("sinks.len is {}", values.len()));
    }
    let (capped, biased) = (problem.softcap(30.0).unwrap(), problem.alibi_slopes(&[1.0; 2]).unwrap());
    assert_eq!(fault(capped.alibi_slopes(&[1.0; 2]).unwrap_err()), "alibi_slopes is [1.0, 1.0]");
    assert_eq!(fault(biased.softcap(30.0).unwrap_err()), "softcap is 30");
}

#[test]
fn more_rows_than_memory_can_hold_are_refused() {
    let (ones, row) = ([f16::ONE; 8], Layout::bshd([1, 1, 1, 8]));
    let kv = HostTensor::new(&ones, row.broadcast(Dim::Batch, 1 << 60).unwrap()).unwrap();
    for heads in [1, 1 << 4] {
        let q = HostTensor::new(&ones, row.broadcast(Dim::Batch, 1 << 60).unwrap().broadcast(Dim::Heads, heads).unwrap()).unwrap();
        assert!(matches!(Problem::new(q, kv, kv), Err(Error::Invalid { field, .. }) if field == "q.shape"));
    }
}

/// By strides of 0 a handful of elements has any shape.
#[test]
fn shapes_that_no_memory_holds_are_refused() {
    let ones = [bf16::ONE; 8];
    let tensor = |shape: [usize; 4]| HostTensor::new(&ones[..], Layout { shape, strides: [0; 3] }).unwrap();
    let refused = |q, kv| match Problem::new(tensor(q), tensor(kv), tensor(kv)).unwrap_err() {
        Error::Invalid { field, .. } | Error::Unsupported { field, .. } => field,
        error => panic!("{error}"),
    };
    assert_eq!(refused([1, 1, 1, 8], [1, 1 << 61, 1, 8]), "k.seqlen");
    assert_eq!(refused([1, 1, 1, 8], [1, 1 << 44, 1, 8]), "k.seqlen");
    assert_eq!(refused([1, 1 << 59, 1, 1], [1, 1, 1, 1]), "q.seqlen");
    // O of one column would fit in the address space; its rows do not.
    assert_eq!(refused([1 << 59, 1, 1, 1], [1 << 59, 1, 1, 1]), "q.shape");
    assert_eq!(refused([1, 1, 1 << 59, 1], [1, 1, 1, 1]), "q.shape");
    let longest = hopper_attention_kernels::params::MAX_SEQLEN as usize;
    assert!(Problem::new(tensor([1, longest, 1, 8]), tensor([1, longest, 1, 8]), tensor([1, longest, 1, 8])).is_ok());
    assert_eq!(refused([1, longest + 1, 1, 8], [1, 1, 1, 8]), "q.seqlen");
}

/// With such factors the references would differ, and calls refuse them.
#[test]
fn factors_that_calls_refuse_are_refused() {
    let ones = [f16::ONE; 8];
    let x = HostTensor::new(&ones[..], Layout::bshd([1, 1, 1, 8])).unwrap();
    let problem = Problem::new(x, x, x).unwrap();
    let field = |result: Result<Problem<'_, f16>, Error>| match result.unwrap_err() {
        Error::Invalid { field, .. } => field,
        error => panic!("{error}"),
    };
    for scale in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, 3e38] {
        assert_eq!(field(problem.softmax_scale(scale)), "softmax_scale", "{scale}");
        assert_eq!(field(problem.alibi_slopes(&[1.0]).unwrap().softmax_scale(scale)), "softmax_scale", "{scale}");
    }
    for cap in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-39, 3e38] {
        assert_eq!(field(problem.softcap(cap)), "softcap", "{cap}");
    }
    // Each will do, but not together, in whatever order.
    assert_eq!(field(problem.softmax_scale(1e-30).unwrap().softcap(1e30)), "softcap");
    assert_eq!(field(problem.softcap(1e30).unwrap().softmax_scale(1e-30)), "softcap");
    assert!(problem.softcap(1e30).is_ok() && problem.softmax_scale(1e-30).is_ok() && problem.softmax_scale(2e38).is_ok());
}
