//! Lengths of queries and keys: those that FlashAttention-3 is tested with, for every head_dim; and those around the edges of tiles.

use crate::{Kernel, for_each_kernel, variant_name};
use hopper_attention_tests::{Case, DeviceTest, ElementType, Failure, Profile, check_case, check_cases};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for (head_dim, lengths) in Profile::get().head_dims_and_lengths() {
        for dtype in ElementType::ALL {
            for causal in [false, true] {
                let (name, lengths) = (format!("lengths::{}", variant_name(head_dim, dtype, causal)), lengths.clone());
                tests.push(DeviceTest::new(name, move || named_lengths(head_dim, lengths, dtype, causal)));
            }
        }
    }
    tests.extend(for_each_kernel("tile_edges", tile_edges));
    for causal in [false, true] {
        let name = |dtype, head_dim| format!("a_million_tokens::{}", variant_name(head_dim, dtype, causal));
        let dtype = ElementType::Bf16;
        tests.push(DeviceTest::on_hardware(name(dtype, 128), move || a_million_tokens(dtype, 128, causal)));
        let dtype = ElementType::F16;
        tests.push(DeviceTest::on_hardware(name(dtype, 64), move || a_million_tokens(dtype, 64, causal)));
    }
    tests.push(DeviceTest::on_hardware("a_million_keys::one_query", million_keys_one_query));
    tests
}

fn named_lengths(head_dim: usize, lengths: Vec<(usize, usize)>, dtype: ElementType, causal: bool) -> Result<(), Failure> {
    let case = |(index, (seqlen_q, seqlen_k)): (usize, (usize, usize))| {
        // Six query heads over 6, 2 and 1 key heads in turn; fewer where the sequence alone is work enough.
        let (batch, heads, heads_k) = if seqlen_q * seqlen_k > 1 << 20 { (1, 2, 1) } else { (1 + index % 2, 6, [6, 2, 1][index % 3]) };
        let case = Case::new(dtype, head_dim, seqlen_q, seqlen_k).causal(causal).heads(batch, heads, heads_k);
        Case { seed: index as u64, ..case }.judging_pairs(Profile::get().judged_pairs() / 2)
    };
    check_cases(lengths.into_iter().enumerate().map(case))
}

fn tile_edges((config, dtype): Kernel) -> Result<(), Failure> {
    let around = |tile: usize| Profile::get().pick(vec![tile - 1, tile, tile + 1, 2 * tile + 1], vec![tile - 1, tile + 1]);
    let (tile_m, tile_n) = (config.tile_m as usize, config.tile_n as usize);
    let mut lengths_q = around(tile_m);
    // A math warpgroup's share of the tile.
    lengths_q.extend(Profile::get().pick(vec![63, 64, 65], vec![65]));
    let mut cases = Vec::new();
    for &seqlen_q in &lengths_q {
        for seqlen_k in around(tile_n) {
            let seed = (seqlen_q * 1000 + seqlen_k) as u64;
            let case = Case::native(dtype, &config, seqlen_q, seqlen_k).heads(1, 2, 2);
            cases.push(Case { seed, ..case });
        }
    }
    check_cases(cases)
}

fn a_million_tokens(dtype: ElementType, head_dim: usize, causal: bool) -> Result<(), Failure> {
    let seqlen = (1 << 20) + 3;
    let case = Case::new(dtype, head_dim, seqlen, seqlen).causal(causal);
    check_case(&Case { judged_rows: Some(64), ..case })
}

fn million_keys_one_query() -> Result<(), Failure> {
    check_cases([64, 128, 256].map(|head_dim| Case::new(ElementType::Bf16, head_dim, 1, (1 << 20) + 77).causal(true).heads(1, 8, 1)))
}
