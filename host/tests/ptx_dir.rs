//! Kernels from a folder instead of those built in. The choice is the process's, so this is the only test of its file.

mod scripted;

use std::path::{Path, PathBuf};

use hopper_attention::{DType, Error, Layout, raw};
use scripted::Script;

/// The text that is built in.
fn own(entry: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("ptx").join(entry).with_extension("ptx")).unwrap()
}

/// The text with another of something that it has once.
fn edited(entry: &str, old: &str, new: &str) -> String {
    let text = own(entry);
    assert_eq!(text.matches(old).count(), 1, "{entry}: {old}");
    text.replace(old, new)
}

fn combine() -> Result<(), Error> {
    let tensor = |address| raw::Tensor4 { address, dtype: DType::Bf16, layout: Layout::bshd([1, 2, 1, 64]) };
    let lse = |address| raw::Lse { address, len: 2 };
    let part = raw::Part { o: tensor(0x1_0000), lse: lse(0x2_0000) };
    // SAFETY: the scripted driver reads and writes no device memory, and has no streams that could be dead.
    unsafe { raw::combine(&[part], &tensor(0x3_0000), Some(lse(0x4_0000)), std::ptr::null_mut()) }
}

/// The message of an error about this file, before the driver has seen anything of it.
fn refused(script: &Script, result: Result<(), Error>, path: &PathBuf) -> String {
    let error = result.unwrap_err();
    assert!(matches!(&error, Error::PtxFile { path: named, .. } if named == path), "{error}");
    let message = error.to_string();
    assert!(message.starts_with(&format!("cannot use the PTX file {}: ", path.display())), "{message}");
    let calls = script.calls();
    assert!(!calls.iter().any(|call| call.starts_with("cuModule") || call.starts_with("cuLaunch")), "{calls:?}");
    message
}

#[test]
fn the_environment_names_a_folder_of_ptx() {
    let folder = std::env::temp_dir().join(format!("hopper-attention-ptx-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |entry: &str| folder.join(entry).with_extension("ptx");
    let write = |entry: &str, text: String| std::fs::write(path(entry), text).unwrap();
    // A plain kernel is prepared together with the general one.
    let (plain, general) = ("flash_fwd_hdim64_f16_sm90", "flash_fwd_hdim64_f16_general_sm90");
    for entry in [plain, general] {
        write(entry, own(entry));
    }
    // SAFETY: no other thread of this process reads or writes the environment.
    unsafe { std::env::set_var("HOPPER_ATTENTION_PTX_DIR", &folder) };
    let script = Script::start();
    let prepare = |head_dim, dtype| raw::prepare(head_dim, dtype, &raw::Options::new());

    script.new_context();
    prepare(64, DType::F16).unwrap();
    let calls = script.calls();
    for entry in [plain, general] {
        assert!(calls.contains(&format!("cuModuleLoadDataEx {entry}")), "{calls:?}");
    }
    refused(&script, prepare(64, DType::Bf16), &path("flash_fwd_hdim64_bf16_sm90"));
    // A pipe has no end that a reader could wait for; a folder stands for it here.
    std::fs::create_dir(path("flash_fwd_hdim192_f16_sm90")).unwrap();
    let message = refused(&script, prepare(192, DType::F16), &path("flash_fwd_hdim192_f16_sm90"));
    assert!(message.contains("no regular file"), "{message}");

    // Kernels of another version: the driver would read more arguments than there are, or start other warps than the kernel has roles for.
    let entry = "flash_combine_bf16_sm90";
    for (old, new, words) in [
        ("[2656]\n)", "[2656],\n\t.param .b64 more\n)", "takes parameters of [2656, 8] bytes, not [2656]"),
        ("param_0[2656]\n)", "param_0[2720]\n)", "takes parameters of [2720] bytes"),
        (".maxntid 256, 1, 1", ".maxntid 128, 1, 1", "CTAs of 128 threads, not 256"),
        (".visible .entry flash_combine_bf16_sm90", ".visible .entry flash_combine_f16_sm90", "not flash_combine_bf16_sm90"),
        (".address_size 64", ".address_size 64\n\0", "NUL"),
    ] {
        write(entry, edited(entry, old, new));
        let message = refused(&script, combine(), &path(entry));
        assert!(message.contains(words) && message.contains("build it again"), "{message}");
    }
    write(entry, own(entry));
    combine().unwrap();
    assert!(script.calls().iter().any(|call| call.starts_with("cuLaunchKernel")));
    let entry = "flash_fwd_hdim96_f16_sm90";
    for (old, new) in [("param_4[128]\n)", "param_4[128],\n\t.param .align 8 .b8 more[96]\n)"), (".maxntid 512", ".maxntid 384")] {
        write(entry, edited(entry, old, new));
        let message = refused(&script, prepare(96, DType::F16), &path(entry));
        assert!(message.contains("build it again"), "{message}");
    }
    let entry = "flash_fwd_hdim64_bf16_general_softcap_sm90";
    write(entry, edited(entry, "param_5[112]\n)", "param_5[96]\n)"));
    let message = refused(&script, raw::prepare(64, DType::Bf16, &raw::Options::new().softcap(30.0)), &path(entry));
    assert!(message.contains("96] bytes"), "{message}");

    // Whatever is wrong with a file, the error names it.
    for (call, code) in [("cuModuleLoadDataEx", 218), ("cuModuleLoadDataEx", 222), ("cuModuleGetFunction", 500)] {
        script.new_context();
        script.set(call, code);
        let error = prepare(64, DType::F16).unwrap_err();
        assert!(matches!(error, Error::Load { .. } | Error::DriverTooOld { .. }), "{error}");
        assert!(error.to_string().contains(&format!(" of {}", path(plain).display())), "{error}");
        script.set(call, 0);
    }
    let error = raw::set_ptx_dir("elsewhere").unwrap_err();
    assert!(error.to_string().contains("elsewhere") && error.to_string().contains(&format!("{} is in use", folder.display())), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}
