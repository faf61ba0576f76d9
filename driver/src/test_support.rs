//! What the tests share: libraries made on the spot, processes that open them as their driver, and types of C functions to compare.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::DRIVER_VARIABLE;

/// A file, removed when dropped.
pub(crate) struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str) -> Self {
        let executable = std::env::current_exe().expect("the path of this test");
        Self(executable.with_file_name(format!("{name}-{}", std::process::id())))
    }
}

impl AsRef<Path> for TemporaryFile {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Compiles a source file (path below this crate's folder) into a shared library.
pub(crate) fn compile_library(source: &str) -> TemporaryFile {
    compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
}

/// Compiles `code` into a shared library. `name` is unique among the tests.
pub(crate) fn compile_library_from(code: &str, name: &str) -> TemporaryFile {
    let source = TemporaryFile::new(name);
    fs::write(source.as_ref(), code).expect("the tests' folder is writable");
    compile(source.as_ref())
}

fn compile(source: &Path) -> TemporaryFile {
    let library = TemporaryFile::new(&format!("{}.so", source.file_stem().expect("a file").display()));
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let arguments = ["--crate-name", "library", "--crate-type", "cdylib", "--edition", "2024", "-Cpanic=abort", "-o"];
    let output = Command::new(rustc).args(arguments).arg(library.as_ref()).arg(source).output().expect("rustc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

/// Runs `body` in a process of its own, because a process opens its driver once: there it is the library that `driver` makes. `test` is the
/// full name of the calling test, which is started again.
pub(crate) fn in_process_with_driver<D: AsRef<Path>>(test: &str, driver: impl FnOnce() -> D, body: fn()) {
    const CHILD: &str = "HOPPER_ATTENTION_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let driver = driver();
    let mut child = Command::new(std::env::current_exe().expect("the path of this test"));
    let output =
        child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env(DRIVER_VARIABLE, driver.as_ref()).output().expect("it starts");
    let text = [String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)].concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// How the ABI passes an argument: its size, and whether in a floating-point register.
pub(crate) type Class = (usize, bool);

fn class<T>() -> Class {
    (size_of::<T>(), std::any::type_name::<T>() == "f32")
}

/// The type of a C function.
pub(crate) trait Signature {
    /// Its arguments and its result.
    fn classes() -> Vec<Class>;
}

macro_rules! signature_of_arity {
    ($($arg:ident)*) => {
        impl<$($arg,)* R> Signature for unsafe extern "C" fn($($arg),*) -> R {
            fn classes() -> Vec<Class> {
                vec![$(class::<$arg>(),)* class::<R>()]
            }
        }
    };
}

signature_of_arity!();
signature_of_arity!(A);
signature_of_arity!(A B);
signature_of_arity!(A B C);
signature_of_arity!(A B C D);
signature_of_arity!(A B C D E);
signature_of_arity!(A B C D E F);
signature_of_arity!(A B C D E F G);
signature_of_arity!(A B C D E F G H);
signature_of_arity!(A B C D E F G H I J);
signature_of_arity!(A B C D E F G H I J K);
signature_of_arity!(A B C D E F G H I J K L);
