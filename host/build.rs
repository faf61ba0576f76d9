//! Compresses the kernels' PTX: every program with this library carries all of it, and uses a few.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

/// The highest levels make it 2 % smaller, in several times the time.
const LEVEL: u8 = 5;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=ptx");
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR for build scripts")?;
    for file in fs::read_dir("ptx")? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "ptx") {
            let name = path.file_name().ok_or("a file has a name")?;
            let compressed = miniz_oxide::deflate::compress_to_vec(&fs::read(&path)?, LEVEL);
            fs::write(Path::new(&out).join(name).with_extension("ptx.deflate"), compressed)?;
        }
    }
    Ok(())
}
