//! Attention inputs of a real model, against results that were computed elsewhere.

use half::{bf16, f16};
use hopper_attention_tests::activations::{self, Activations};
use hopper_attention_tests::{Case, DeviceTest, ElementType, Failure, Inputs, check_inputs, ensure};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    let files = activations::all().unwrap_or_else(|failure| panic!("the files are part of this program: {failure}"));
    for file in files {
        let copy = file.clone();
        tests.push(DeviceTest::new(format!("activations::{}_f16", file.name), move || as_stored(&file)));
        tests.push(DeviceTest::new(format!("activations::{}_bf16", copy.name), move || in_bf16(&copy)));
    }
    tests
}

fn case(file: &Activations, dtype: ElementType) -> Case {
    let [batch, seqlen, heads, head_dim] = file.shape;
    Case::new(dtype, head_dim, seqlen, seqlen).heads(batch, heads, heads)
}

fn as_stored(file: &Activations) -> Result<(), Failure> {
    let inputs = Inputs { q: file.q.clone(), k: file.k.clone(), v: file.v.clone() };
    let output = check_inputs(&case(file, ElementType::F16), &inputs)?;
    // P and O are rounded by at most 2^-11 each, relative to the largest value.
    let largest = file.v.iter().map(|v| v.to_f32().abs()).fold(0.0, f32::max);
    for (i, (o, stored)) in output.o.iter().zip(&file.o).enumerate() {
        ensure!((o.to_f32() - stored).abs() <= largest / 1000.0, "element {i} of O is {o}, stored {stored}");
    }
    let lse = output.lse.unwrap_or_default();
    ensure!(lse.len() == file.lse.len(), "{} numbers of LSE, stored {}", lse.len(), file.lse.len());
    for (i, (lse, stored)) in lse.iter().zip(&file.lse).enumerate() {
        ensure!((lse - stored).abs() <= 1e-6 * stored.abs().max(10.0), "LSE {i} is {lse}, stored {stored}");
    }
    Ok(())
}

fn in_bf16(file: &Activations) -> Result<(), Failure> {
    let round = |values: &[f16]| values.iter().map(|value| bf16::from_f32(value.to_f32())).collect();
    let inputs = Inputs { q: round(&file.q), k: round(&file.k), v: round(&file.v) };
    check_inputs(&case(file, ElementType::Bf16), &inputs)?;
    check_inputs(&case(file, ElementType::Bf16).causal(true), &inputs).map(|_| ())
}
