use std::collections::BTreeSet;
use std::mem;
use std::path::{Path, PathBuf};
use std::process::Command;

use cust::error::CudaError;
use cust::sys;

use super::*;
use crate::test_support::{Class, Signature, compile_library, compile_library_from, in_process_with_driver};

mod pattern;

use pattern::Pattern;

/// The list's functions with the test's arguments, called through cust_raw's declarations.
macro_rules! call_imports {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        [$((stringify!($name), {
            // SAFETY: `signatures_agree_with_cust_raw` compares these types.
            let call = unsafe { mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) -> CUresult>(sys::$name as *const c_void) };
            // SAFETY: neither the shim nor the fake driver follows a pointer.
            unsafe { call($(<$type>::of(stringify!($name), stringify!($arg).as_bytes()[0])),*) }
        })),*]
    };
}

macro_rules! names {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        [$(stringify!($name)),*]
    };
}

macro_rules! inferred {
    ($arg:ident) => {
        _
    };
}

fn classes_of<F: Signature>(_function: F) -> Vec<Class> {
    F::classes()
}

macro_rules! listed_signatures {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        [$((stringify!($name), <unsafe extern "C" fn($($type),*) -> CUresult>::classes())),*]
    };
}

macro_rules! declared_signatures {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        [$((stringify!($name), classes_of(sys::$name as unsafe extern "C" fn($(inferred!($arg)),*) -> sys::CUresult))),*]
    };
}

/// How each function of the list is called.
pub(crate) fn signatures() -> Vec<(&'static str, Vec<Class>)> {
    for_each_import!(listed_signatures).into()
}

#[test]
fn signatures_agree_with_cust_raw() {
    assert_eq!(signatures(), for_each_import!(declared_signatures));
}

/// Where cargo keeps a package of the lock file.
fn package_folder(package: &str) -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let cargo = cargo.args(["metadata", "--format-version", "1", "--locked", "--manifest-path"]);
    let output = cargo.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let package = packages.iter().find(|candidate| candidate["name"] == package).expect("a package of the lock file");
    Path::new(package["manifest_path"].as_str().expect("a path")).parent().expect("a folder").to_owned()
}

fn cust_raw_source() -> String {
    std::fs::read_to_string(package_folder("cust_raw").join("src/cuda.rs")).expect("cust_raw's source")
}

#[test]
fn every_function_of_cust_raw_is_defined() {
    let source = cust_raw_source();
    let name = |line: &str| line.trim_start().strip_prefix("pub fn cu").and_then(|rest| Some(format!("cu{}", rest.split_once('(')?.0)));
    let declared: BTreeSet<String> = source.lines().filter_map(name).collect();
    let listed = for_each_import!(names).map(String::from).into_iter().chain(["cuGetErrorString".into()]).collect();
    assert!(declared.len() > 300, "cust_raw's source reads otherwise than this test expects");
    assert_eq!(declared, listed);
}

#[test]
fn codes_are_those_of_cust_raw() {
    let source = cust_raw_source();
    let (_, variants) = source.split_once("pub enum cudaError_enum {").expect("the enum of error codes");
    let (variants, _) = variants.split_once('}').expect("its end");
    let code = |line: &str| line.split_once('=').map(|(_, code)| code.trim().trim_end_matches(',').parse::<u32>().expect("a code"));
    let declared: BTreeSet<u32> = variants.lines().filter_map(code).collect();
    for code in (0..2000).chain([u32::MAX]) {
        let expected = if declared.contains(&code) { CUresult(code) } else { CUresult::UNKNOWN };
        assert_eq!(listed_in_cust(CUresult(code)), expected, "code {code}");
    }
}

#[test]
fn without_a_driver() {
    in_process_with_driver(
        "import_shim::tests::without_a_driver",
        || "/nowhere/libcuda.so.1",
        || {
            let error = cust::init(cust::CudaFlags::empty()).unwrap_err();
            assert_eq!(error, CudaError::NoDevice);
            assert!(error.to_string().contains("/nowhere/libcuda.so.1"), "{error}");
            for (name, result) in for_each_import!(call_imports) {
                assert_eq!(result, CUresult::NO_DEVICE, "{name}");
            }
        },
    );
}

#[test]
fn forwards_every_argument() {
    let fake = || compile_library("src/import_shim/tests/fake_driver.rs");
    in_process_with_driver("import_shim::tests::forwards_every_argument", fake, || {
        for (name, result) in for_each_import!(call_imports) {
            let without_arguments = ["cuCtxSynchronize", "cuCtxResetPersistingL2Cache", "cuProfilerStart", "cuProfilerStop"];
            // The fake driver's code for those is none that cust knows.
            let expected = if without_arguments.contains(&name) { CUresult::UNKNOWN } else { CUresult::SUCCESS };
            assert_eq!(result, expected, "{name}");
        }
        assert_eq!(CudaError::InvalidValue.to_string(), "\"words of the fake driver\"");
    });
}

#[test]
fn a_function_that_the_driver_lacks() {
    let empty = || compile_library_from("", "empty");
    in_process_with_driver("import_shim::tests::a_function_that_the_driver_lacks", empty, || {
        let error = cust::init(cust::CudaFlags::empty()).unwrap_err();
        assert_eq!(error, CudaError::NotFound);
        assert_eq!(error.to_string(), "\"the library opened as driver describes no errors\"");
    });
}
