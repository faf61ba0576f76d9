//! A stand-in for the CUDA driver.
mod lower;
mod machine;
mod ptx;
#[cfg(test)]
mod front_end_tests {
    #[test]
    fn prototype() {
        for path in ["/tmp/proto.ptx", "/work/shared/rust-cuda/prototype_rust_cuda.raw.ptx"] {
            let source = std::fs::read_to_string(path).unwrap();
            let t = std::time::Instant::now();
            let module = crate::ptx::parse(&source).unwrap_or_else(|e| panic!("{e}"));
            let program = crate::lower::lower(&module, &source).unwrap_or_else(|e| panic!("{e}"));
            println!("{} {:?}", program.kernels.len(), t.elapsed());
            for k in &program.kernels {
                println!("{} code {} words {} {} {}", k.name, k.code.len(), k.words, k.doubles, k.preds);
            }
        }
    }
}
