//! Kernels from a folder instead of those built in. The choice is the process's, so this is the only test of its file.

mod scripted;

use hopper_attention::{DType, Error, raw};
use scripted::Script;

#[test]
fn the_environment_names_a_folder_of_ptx() {
    let folder = std::env::temp_dir().join(format!("hopper-attention-ptx-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let ptx = |head_dim: u32| folder.join(format!("flash_fwd_hdim{head_dim}_f16_sm90.ptx"));
    std::fs::write(ptx(64), ".version 8.0\n.target sm_90a\n.visible .entry from_the_folder()\n").unwrap();
    // A plain kernel is prepared together with the general one.
    let general = folder.join("flash_fwd_hdim64_f16_general_sm90.ptx");
    std::fs::write(general, ".version 8.0\n.target sm_90a\n.visible .entry from_there_too()\n").unwrap();
    std::fs::write(ptx(128), ".version 8.0\n\0\n").unwrap();
    // SAFETY: no other thread of this process reads or writes the environment.
    unsafe { std::env::set_var("HOPPER_ATTENTION_PTX_DIR", &folder) };
    let script = Script::start();
    let prepare = |head_dim, dtype| raw::prepare(head_dim, dtype, &raw::Options::new());

    script.new_context();
    prepare(64, DType::F16).unwrap();
    let calls = script.calls();
    for entry in ["from_the_folder", "from_there_too"] {
        assert!(calls.contains(&format!("cuModuleLoadDataEx {entry}")), "{calls:?}");
    }
    let error = prepare(64, DType::Bf16).unwrap_err();
    assert!(matches!(&error, Error::PtxFile { path, .. } if path.starts_with(&folder)), "{error}");
    assert!(error.to_string().contains("flash_fwd_hdim64_bf16_sm90.ptx"), "{error}");
    // A pipe has no end that a reader could wait for; a folder stands for it here.
    std::fs::create_dir(ptx(192)).unwrap();
    let error = prepare(192, DType::F16).unwrap_err();
    assert!(matches!(&error, Error::PtxFile { source, .. } if source.to_string().contains("no regular file")), "{error}");
    // Whatever is wrong with a file, the error names it.
    let error = prepare(128, DType::F16).unwrap_err();
    assert!(matches!(&error, Error::Load { log, .. } if log.contains("NUL")), "{error}");
    assert!(error.to_string().contains(&format!("flash_fwd_hdim128_f16_sm90 of {}", ptx(128).display())), "{error}");
    for (call, code) in [("cuModuleLoadDataEx", 218), ("cuModuleLoadDataEx", 222), ("cuModuleGetFunction", 500)] {
        script.new_context();
        script.set(call, code);
        let error = prepare(64, DType::F16).unwrap_err();
        assert!(matches!(error, Error::Load { .. } | Error::DriverTooOld { .. }), "{error}");
        assert!(error.to_string().contains(&format!(" of {}", ptx(64).display())), "{error}");
        script.set(call, 0);
    }
    let error = raw::set_ptx_dir("elsewhere").unwrap_err();
    assert!(error.to_string().contains("elsewhere") && error.to_string().contains(&format!("{} is in use", folder.display())), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}
