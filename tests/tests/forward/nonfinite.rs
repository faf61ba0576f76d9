//! NaN and infinity in the inputs: where they must arrive, and where not.
//!
//! In Q and K they reach the rows that see them. In V they reach every row whose query tile visits their key tile, since the tensor core
//! multiplies masked probabilities too; the `tiled` reference knows which rows those are.

use crate::{Kernel, for_each_kernel};
use hopper_attention_tests::{Case, DeviceTest, Edit, Failure, Number, Operand, Profile, check_cases};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for (name, operand) in [("queries", Operand::Q), ("keys", Operand::K), ("values", Operand::V)] {
        tests.extend(for_each_kernel(&format!("nonfinite::{name}"), move |kernel| in_operand(kernel, operand)));
    }
    tests.extend(for_each_kernel("nonfinite::logits_of_minus_infinity", logits_of_minus_infinity));
    tests.extend(for_each_kernel("nonfinite::logits_of_infinity", logits_of_infinity));
    tests
}

/// Some rows see nothing, some keys are seen by few rows.
fn case((config, dtype): Kernel) -> Case {
    let (seqlen_q, seqlen_k) = Profile::get().pick((430, 400), (140, 130));
    Case::native(dtype, &config, seqlen_q, seqlen_k).heads(1, 2, 1)
}

fn in_operand(kernel: Kernel, operand: Operand) -> Result<(), Failure> {
    let (config, _) = kernel;
    let base = case(kernel);
    let (length, tile) = match operand {
        Operand::Q => (base.seqlen_q, config.tile_m as usize),
        Operand::K | Operand::V => (base.seqlen_k, config.tile_n as usize),
    };
    let last_column = if operand == Operand::V { base.o_head_dim() } else { base.head_dim } - 1;
    let mut cases = Vec::new();
    // On an emulator the sequence may end within the first tile.
    for position in [0, tile - 1, tile, length - 1].map(|position| position.min(length - 1)) {
        for (value, column) in
            [(Number::Nan, 0), (Number::Nan, last_column), (Number::Infinity, 3), (Number::NegativeInfinity, last_column)]
        {
            cases.push(Case { edits: vec![Edit::one(operand, position, column, value)], ..base.clone() });
        }
    }
    check_cases(cases.into_iter().step_by(Profile::get().pick(1, 5)))
}

fn all(operand: Operand, position: Option<usize>, value: Number) -> Edit {
    Edit { operand, batch_idx: None, position, head_idx: None, column: Some(1), value }
}

/// Keys whose logits are -inf count as not seen; a row that sees no other is 0.
fn logits_of_minus_infinity(kernel: Kernel) -> Result<(), Failure> {
    let (config, _) = kernel;
    let base = case(kernel);
    let tile_n = config.tile_n as usize;
    let hidden = |keys: Vec<usize>| {
        let mut edits = vec![all(Operand::Q, None, Number::Finite(2.0))];
        edits.extend(keys.into_iter().map(|key| all(Operand::K, Some(key), Number::NegativeInfinity)));
        Case { edits, ..base.clone() }
    };
    let last = base.seqlen_k - 1;
    check_cases([
        hidden((0..=last).collect()),
        hidden((0..tile_n).collect()),
        hidden((tile_n..=last).collect()),
        hidden((0..=last).filter(|key| key % 3 != 0).collect()),
        hidden((1..=last).collect()),
    ])
}

fn logits_of_infinity(kernel: Kernel) -> Result<(), Failure> {
    let base = case(kernel);
    let seen = |key| Case {
        edits: vec![all(Operand::Q, None, Number::Finite(2.0)), all(Operand::K, Some(key), Number::Infinity)],
        ..base.clone()
    };
    check_cases([0, base.seqlen_k / 2, base.seqlen_k - 1].map(seen))
}
