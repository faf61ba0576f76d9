//! Runs one PTX file through a driver, this one or a real one: what to launch, with which arguments and what must come out stands in comments
//! at the head of the file.
//!
//! ```text
//! // launch: grid 1 block 128 shared 4096      (kernel NAME if the file has several; y and z as 4,2,1)
//! // arg: in u32[64] = i * 3                   (a buffer whose element i has this value; f16 bf16 f32 u8 u16 u32 u64)
//! // arg: out u32[64] = 7                      (a buffer that is compared afterwards)
//! // arg: scratch u32[64]                      (a buffer of which nothing is known)
//! // arg: u32 5                                (a scalar; also u64, f32)
//! // arg: map 0 f16 dims 64,8 strides 128 box 64,8 swizzle 128 [element_strides 1,1] [fill nan]
//! //                                           (a tensor map over argument 0)
//! // expect: illegal address                   (the launch must fail, and the report must contain this text; several lines: all of them)
//! // expect code: 700                          (and with this code)
//! // expect load: unresolved                   (the module must be refused, with this text in the log)
//! // budget: 1000000                           (instructions of warps that a CTA may execute; otherwise
//! //                                           HOPPER_EMULATOR_BUDGET)
//! // schedules: 8                              (seeds 0 to 7; 1 if left out)
//! ```
//!
//! Expressions are integers with `i`, `+ - * / % & | ^ << >> == <` and parentheses, evaluated in 64 bits, then converted to the element type.

mod expression;
mod link;
mod spec;

pub use link::Link;
pub use spec::Spec;

use link::Session;
use spec::{Argument, Buffer};

/// What a run of a file found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything was as the file says.
    Agrees,
    /// Something was not.
    Differs(String),
}

/// Runs `source` as its own comments say, for each of its seeds. A driver that is no emulator ignores seeds, and runs only files that are
/// expected to succeed.
pub fn check(link: &Link, source: &str) -> Verdict {
    match Spec::parse(source) {
        Ok(spec) => check_as(link, source, &spec),
        Err(message) => Verdict::Differs(message),
    }
}

/// As [`check`], with what to launch given apart from the text.
pub fn check_as(link: &Link, source: &str, spec: &Spec) -> Verdict {
    match check_seeds(link, source, spec) {
        Ok(()) => Verdict::Agrees,
        Err(message) => Verdict::Differs(message),
    }
}

fn check_seeds(link: &Link, source: &str, spec: &Spec) -> Result<(), String> {
    for seed in 0..spec.schedules.max(1) {
        link.set_seed(seed);
        run_once(link, source, spec).map_err(|message| format!("seed {seed}: {message}"))?;
        if !link.is_emulator() {
            break;
        }
    }
    Ok(())
}

/// Launches once; returns the report of a launch that failed.
pub fn run_once(link: &Link, source: &str, spec: &Spec) -> Result<(), String> {
    link.set_budget(spec.budget.unwrap_or_else(crate::driver::default_budget));
    let session = Session::open(link)?;
    let expects_failure = !spec.expected.is_empty() || spec.expected_code.is_some();
    let function = match session.load(source, spec.kernel.as_deref()) {
        Ok(function) => function,
        Err(log) => {
            return match &spec.expected_load {
                Some(text) if log.contains(text.as_str()) => Ok(()),
                _ => Err(format!("the module was refused: {log}")),
            };
        }
    };
    if spec.expected_load.is_some() {
        return Err("the module should have been refused".to_string());
    }
    let mut addresses = Vec::new();
    let mut values: Vec<Vec<u8>> = Vec::new();
    for argument in &spec.arguments {
        match argument {
            Argument::Buffer(buffer) => {
                let address = session.allocate(buffer.bytes())?;
                if let Some(bytes) = buffer.initial()? {
                    session.upload(address, &bytes)?;
                }
                addresses.push(address);
                values.push(address.to_le_bytes().to_vec());
            }
            Argument::Scalar(bytes) => {
                addresses.push(0);
                values.push(bytes.clone());
            }
            Argument::Map(map) => {
                addresses.push(0);
                let base = *addresses.get(map.buffer).ok_or("a map must come behind its buffer")?;
                match session.encode(map, base) {
                    Ok(bytes) => values.push(bytes),
                    Err(text) if expects_failure => return compare_report(spec, &text, None),
                    Err(text) => return Err(format!("the tensor map was refused: {text}")),
                }
            }
        }
    }
    check_arguments(source, spec, &values)?;
    match session.launch(function, spec, &values) {
        Ok(()) if expects_failure => Err("the launch should have failed".to_string()),
        Ok(()) => compare_buffers(&session, spec, &addresses),
        Err((code, report)) if expects_failure => compare_report(spec, &report, Some(code)),
        Err((code, report)) => Err(format!("the launch failed with {code}: {report}")),
    }
}

/// The driver reads as many bytes as the kernel's parameters have: the file must give them all.
fn check_arguments(source: &str, spec: &Spec, values: &[Vec<u8>]) -> Result<(), String> {
    let module = crate::ptx::parse(source).map_err(|error| error.to_string())?;
    let wanted = |name: &str| spec.kernel.as_deref().is_none_or(|kernel| kernel == name);
    let Some(kernel) = module.functions.iter().find(|f| f.is_entry && wanted(&f.name)) else { return Ok(()) };
    if kernel.params.len() != values.len() {
        let (name, line) = (&kernel.name, kernel.span.line);
        return Err(format!("line {line}: `{name}` has {} parameters, but {} arguments are given", kernel.params.len(), values.len()));
    }
    for (at, (param, value)) in kernel.params.iter().zip(values).enumerate() {
        if param.size as usize != value.len() {
            let (name, line) = (&param.name, param.span.line);
            return Err(format!("line {line}: `{name}` has {} bytes, but argument {at} has {}", param.size, value.len()));
        }
    }
    Ok(())
}

fn compare_report(spec: &Spec, report: &str, code: Option<u32>) -> Result<(), String> {
    for text in &spec.expected {
        if !report.contains(text.as_str()) {
            return Err(format!("the report lacks `{text}`: {report}"));
        }
    }
    match (spec.expected_code, code) {
        (Some(wanted), Some(code)) if wanted != code => Err(format!("the code is {code}, not {wanted}: {report}")),
        _ => Ok(()),
    }
}

fn compare_buffers(session: &Session<'_>, spec: &Spec, addresses: &[u64]) -> Result<(), String> {
    for (at, argument) in spec.arguments.iter().enumerate() {
        let Argument::Buffer(buffer @ Buffer { is_output: true, .. }) = argument else { continue };
        let found = session.download(addresses[at], buffer.bytes())?;
        let wanted = buffer.values()?;
        let size = buffer.element_bytes();
        for (i, (found, wanted)) in found.chunks(size).zip(wanted.chunks(size)).enumerate() {
            if found != wanted {
                return Err(format!("argument {at}, element {i}: {}, not {}", buffer.show(found), buffer.show(wanted)));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_must_fit_the_parameters() {
        let source = ".version 8.3\n.target sm_90a\n.address_size 64\n.entry k(.param .u64 a, .param .u32 b) { ret; }";
        let given = |sizes: &[usize]| check_arguments(source, &Spec::default(), &sizes.iter().map(|&n| vec![0; n]).collect::<Vec<_>>());
        assert_eq!(given(&[8, 4]), Ok(()));
        assert_eq!(given(&[8]).unwrap_err(), "line 4: `k` has 2 parameters, but 1 arguments are given");
        assert_eq!(given(&[4, 4]).unwrap_err(), "line 4: `a` has 8 bytes, but argument 0 has 4");
    }
}
