//! Builds the PTX of the test kernels into OUT_DIR; the test programs carry it.

use hopper_attention_builder::Builder;
use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    // What the kernels are compiled from; the builder itself is a dependency, whose changes cargo sees.
    for path in ["build.rs", "kernels", "../kernels/src", "../kernels/Cargo.toml"] {
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
    Ok(())
}
