//! Parts of the keys, computed without sinks and merged with them, are all keys in one pass.

use hopper_attention::{Dim, raw};
use hopper_attention_tests::gpu::{Guarded, Stream};
use hopper_attention_tests::{
    Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Number, Sinks, TestElement, check_output, explain, with_element,
};
use std::ops::Range;

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for dtype in ElementType::ALL {
        let name = |what: &str| format!("combine::{what}::{}", dtype.name());
        tests.push(DeviceTest::new(name("with_sinks"), move || with_sinks(dtype)));
        tests.push(DeviceTest::new(name("prefix_and_suffix_under_a_window"), move || under_a_window(dtype)));
    }
    tests
}

fn case(dtype: ElementType, head_dim: usize) -> Case {
    Case::new(dtype, head_dim, 70, 200).heads(2, 5, 1)
}

fn with_sinks(dtype: ElementType) -> Result<(), Failure> {
    // Parts of one key and of none; rows that see no key of a part, and rows that see no key at all.
    let parts = [0..60, 60..61, 61..61, 61..200];
    for sinks in [Sinks::Drawn(2), Sinks::Mixed, Sinks::All(Number::NegativeInfinity)] {
        merged(&case(dtype, 64).sinks(sinks), &parts)?;
    }
    merged(&case(dtype, 128).sinks(Sinks::Mixed).causal(true), &parts)?;
    merged(&Case { seqlen_q: 200, seqlen_k: 70, ..case(dtype, 72) }.sinks(Sinks::Mixed).causal(true), &[0..30, 30..70])
}

fn under_a_window(dtype: ElementType) -> Result<(), Failure> {
    merged(&case(dtype, 64).window(Some(150), Some(0)), &[0..90, 90..200])?;
    merged(&case(dtype, 128).window(Some(130), Some(20)).sinks(Sinks::Mixed), &[0..120, 120..200])?;
    merged(&case(dtype, 192).head_dim_v(128).window(Some(130), None).sinks(Sinks::Drawn(3)), &[0..100, 100..200])
}

fn merged(case: &Case, parts: &[Range<usize>]) -> Result<(), Failure> {
    with_element!(case.dtype, T => merged_of::<T>(case, parts)).map_err(|failure| explain(case, failure))
}

fn merged_of<T: TestElement>(case: &Case, parts: &[Range<usize>]) -> Result<(), Failure> {
    let (inputs, stream) = (Inputs::<T>::draw(case), Stream::new()?);
    let problem = DeviceProblem::new(case, &inputs)?;
    let [q, o] = [problem.call.q, problem.call.o];
    let lse = problem.call.lse.ok_or("the log-sum-exp is asked for")?;
    let (mut memory, mut raw_parts) = (Vec::new(), Vec::new());
    for keys in parts {
        let part = (Guarded::new(2 * o.layout.elements().unwrap_or(0), 0)?, Guarded::new(4 * lse.len, 0)?);
        let part_o = raw::Tensor4 { address: part.0.address(), ..o };
        let part_lse = raw::Lse { address: part.1.address(), len: lse.len };
        let (k, v) = (problem.call.k.slice(Dim::Seqlen, keys.clone())?, problem.call.v.slice(Dim::Seqlen, keys.clone())?);
        // A part's last key stands so many keys before the last of all, at which the window is aligned.
        let behind = case.seqlen_k - keys.end;
        let mut options = problem.call.options;
        options.window_left = options.window_left.map(|left| left - behind);
        options.window_right = options.window_right.map(|right| right + behind);
        if options.causal {
            (options.causal, options.window_right) = (false, Some(behind));
        }
        // SAFETY: all of it stays allocated until the stream has been waited for, and nothing else touches it.
        unsafe { raw::forward(&q, &k, &v, &part_o, Some(part_lse), &options, stream.raw())? };
        raw_parts.push(raw::Part { o: part_o, lse: part_lse });
        memory.push(part);
    }
    // SAFETY: as above; the stream has the parts computed first.
    unsafe {
        match problem.call.arrays.sinks {
            Some(sinks) => raw::combine_with_sinks(&raw_parts, &o, Some(lse), sinks, stream.raw())?,
            None => raw::combine(&raw_parts, &o, Some(lse), stream.raw())?,
        }
    }
    stream.wait(|| case.text())?;
    for (o, lse) in &memory {
        o.check_guards("the O of a part")?;
        lse.check_guards("the LSE of a part")?;
    }
    problem.check_surroundings()?;
    check_output(case, &inputs, &problem.output()?)
}
