//! Makes PTX in OUT_DIR, which the test programs carry: that of the test kernels, and that of the prototype's by two compilers.

use hopper_attention_builder::{Builder, finish};
use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    // What the kernels are compiled from; the builder itself is a dependency, whose changes cargo sees.
    for path in ["build.rs", "data/prototype", "kernels", "../kernels/src", "../kernels/Cargo.toml"] {
        println!("cargo::rerun-if-changed={path}");
    }
    // <target>/<profile>/build/<package>/out
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let target = out.ancestors().nth(4).ok_or("OUT_DIR is not where cargo puts it")?;
    // One folder for all profiles, and for `cargo xtask ptx`: compiling `core` takes longer than compiling these kernels.
    let built = Builder::new("kernels").target_dir(target.join("ptx-build")).build()?;
    if let Some(warning) = built.warning() {
        println!("cargo::warning={warning}");
    }
    built.write(out.join("ptx"))?;
    for compiler in ["rustc", "rust_cuda"] {
        finish_prototype(compiler, &out.join("prototype").join(compiler)).map_err(|error| format!("data/prototype/{compiler}: {error}"))?;
    }
    Ok(())
}

/// As `cargo xtask ptx --from` does with the compiler's module.
fn finish_prototype(compiler: &str, out: &Path) -> Result<(), Box<dyn Error>> {
    let mut module = Vec::new();
    lzma_rs::xz_decompress(&mut BufReader::new(File::open(format!("data/prototype/{compiler}.ptx.xz"))?), &mut module)?;
    fs::create_dir_all(out)?;
    for kernel in finish(std::str::from_utf8(&module)?, "", "tests/build.rs from tests/data/prototype")? {
        kernel.write(out)?;
    }
    Ok(())
}
