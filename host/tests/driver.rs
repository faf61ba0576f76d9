//! What the library asks of the driver, and what it makes of the answers.

mod scripted;

use std::ptr;

use hopper_attention::{DType, Error, Layout, raw};
use scripted::Script;

/// Enough tiles that each of 132 CTAs has several.
const SHAPE: [usize; 4] = [2, 4096, 16, 128];
const LSE: raw::Lse = raw::Lse { address: 0x9_0000_0000, len: 2 * 16 * 4096 };

fn tensor(address: u64) -> raw::Tensor4 {
    raw::Tensor4 { address, dtype: DType::Bf16, layout: Layout::bshd(SHAPE) }
}

fn forward(options: raw::Options, stream: usize) -> Result<(), Error> {
    let [q, k, v, o] = [0x1_0000_0000, 0x2_0000_0000, 0x3_0000_0000, 0x4_0000_0000].map(tensor);
    // SAFETY: the scripted driver reads and writes no device memory, and has no streams that could be dead.
    unsafe { raw::forward(&q, &k, &v, &o, Some(LSE), &options, ptr::without_provenance_mut(stream)) }
}

fn full() -> raw::Options {
    raw::Options::new()
}

fn causal() -> raw::Options {
    full().causal(true)
}

/// The value of `key=` in the only launch among the calls.
fn launch_value(calls: &[String], key: &str) -> String {
    let mut launches = calls.iter().filter(|call| call.starts_with("cuLaunchKernel "));
    let launch = launches.next().expect("a launch");
    assert!(launches.next().is_none(), "{calls:?}");
    let value = launch.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {key} in {launch}")).to_owned()
}

fn loads(calls: &[String]) -> Vec<&str> {
    calls.iter().filter_map(|call| call.strip_prefix("cuModuleLoadDataEx ")).collect()
}

#[test]
fn after_the_first_call_nothing_is_allocated_and_nothing_waited_for() {
    let script = Script::start();
    script.new_context();
    for options in [full(), causal()] {
        forward(options, 7).unwrap();
    }
    script.calls();
    forward(full(), 7).unwrap();
    let encode = "cuTensorMapEncodeTiled";
    let calls = script.calls();
    assert_eq!(calls[..5], ["cuCtxGetId", encode, encode, encode, encode]);
    assert_eq!(calls.len(), 6);
    assert_eq!(launch_value(&calls, "maps"), "0x100000000,0x200000000,0x300000000,0x400000000");
    assert_eq!((launch_value(&calls, "lse"), launch_value(&calls, "stream")), ("0x900000000".into(), "7".into()));
    assert_eq!(launch_value(&calls, "grid"), "132");
    forward(causal(), 7).unwrap();
    let calls = script.calls();
    assert_eq!(calls[..7], ["cuCtxGetId", encode, encode, encode, encode, "cuStreamGetCaptureInfo_v2", "cuStreamGetId"]);
    assert_eq!(calls.len(), 8);
}

#[test]
fn a_kernel_is_loaded_once_in_each_context() {
    let script = Script::start();
    script.new_context();
    forward(full(), 0).unwrap();
    let calls = script.calls();
    assert_eq!(loads(&calls), ["flash_fwd_hdim128_bf16_sm90"]);
    assert!(calls.iter().any(|call| call.starts_with("cuFuncSetAttribute 8 ")), "{calls:?}");
    // With the kernel that serves such calls where they have few queries.
    raw::prepare(128, DType::Bf16, &full()).unwrap();
    assert_eq!(loads(&script.calls()), ["flash_fwd_hdim128_bf16_general_sm90"]);
    raw::prepare(128, DType::Bf16, &full()).unwrap();
    assert!(loads(&script.calls()).is_empty());
    raw::prepare(72, DType::F16, &causal()).unwrap();
    assert_eq!(loads(&script.calls()), ["flash_fwd_hdim96_f16_causal_sm90", "flash_fwd_hdim96_f16_general_sm90"]);
    let rows = ["flash_fwd_hdim128_f16_causal_sm90", "flash_fwd_hdim128_f16_causal_fewer_rows_sm90"];
    raw::prepare(128, DType::F16, &causal()).unwrap();
    assert_eq!(loads(&script.calls()), [rows[0], rows[1], "flash_fwd_hdim128_f16_general_sm90"]);
    // Another context at the address of the first, which is gone.
    script.new_context();
    forward(full(), 0).unwrap();
    assert_eq!(loads(&script.calls()), ["flash_fwd_hdim128_bf16_sm90"]);
}

#[test]
fn threads_that_come_first_at_once_load_once() {
    let script = Script::start();
    script.new_context();
    std::thread::scope(|scope| {
        for stream in 1..9 {
            scope.spawn(move || forward(causal(), stream).unwrap());
        }
    });
    let calls = script.calls();
    assert_eq!(loads(&calls).len(), 1);
    let count = |name: &str| calls.iter().filter(|call| call.starts_with(name)).count();
    // Several may make slots, but all of them use those of one.
    assert_eq!(count("cuMemAlloc_v2"), count("cuMemFree_v2") + 1);
    assert_eq!(count("cuLaunchKernel"), 8);
    let slots: Vec<_> = calls.iter().filter_map(|call| u64::from_str_radix(call.split_once("scheduler=0x")?.1, 16).ok()).collect();
    let (first, last) = (slots.iter().min().unwrap(), slots.iter().max().unwrap());
    assert!(slots.len() == 8 && *first != 0 && last - first < 8 << 10, "{slots:x?}");
}

#[test]
fn slots_that_cannot_be_made_are_freed() {
    let script = Script::start();
    for call in ["cuStreamCreate", "cuMemsetD8Async", "cuStreamSynchronize", "cuStreamDestroy_v2"] {
        script.new_context();
        script.set(call, 2);
        assert!(matches!(forward(causal(), 1), Err(Error::Driver { call: failed, .. }) if failed == call), "{call}");
        let calls = script.calls();
        let count = |name: &str| calls.iter().filter(|call| call.starts_with(name)).count();
        assert_eq!((count("cuMemAlloc_v2"), count("cuMemFree_v2")), (1, 1), "{calls:?}");
        assert_eq!(count("cuStreamCreate") - usize::from(call == "cuStreamCreate"), count("cuStreamDestroy_v2"), "{calls:?}");
        script.set(call, 0);
    }
}

#[test]
fn every_stream_draws_from_its_own_slot() {
    let script = Script::start();
    script.new_context();
    let scheduler = |options, stream| {
        forward(options, stream).unwrap();
        launch_value(&script.calls(), "scheduler")
    };
    let (one, two) = (scheduler(causal(), 1), scheduler(causal(), 2));
    assert!(one != two && one != "0x0" && two != "0x0", "{one} {two}");
    assert_eq!(scheduler(causal(), 1), one);
    assert_eq!(scheduler(full(), 1), "0x0");
    // What a capture records has slots of its own, a stream each.
    script.set("capturing", 1);
    let captured = [scheduler(causal(), 0x1000), scheduler(causal(), 0x2000)];
    assert!(captured.iter().all(|slot| ![&one, &two, "0x0"].contains(&slot.as_str())), "{captured:?}");
    assert!(captured[0] != captured[1] && scheduler(causal(), 0x1000) == captured[0]);
    // This handle means another stream in each thread.
    assert_eq!(scheduler(causal(), 2), "0x0");
}

#[test]
fn first_use_during_capture() {
    let script = Script::start();
    script.new_context();
    script.set("capturing", 1);
    forward(causal(), 3).unwrap();
    let calls = script.calls();
    // What capture forbids is done in relaxed mode (2), and the mode that was found (0) put back.
    let mut relaxed = false;
    for call in &calls {
        match call.split(' ').collect::<Vec<_>>()[..] {
            ["cuThreadExchangeStreamCaptureMode", mode] => relaxed = mode == "2",
            ["cuMemAlloc_v2" | "cuStreamCreate" | "cuStreamSynchronize" | "cuModuleLoadDataEx" | "cuFuncSetAttribute", ..] => {
                assert!(relaxed, "{calls:?}")
            }
            _ => {}
        }
    }
    assert!(!relaxed);
    // The slots are zeroed on a stream of their own that does not wait for the default stream.
    assert!(calls.contains(&"cuStreamCreate 1".to_owned()));
}

#[test]
fn no_current_context() {
    let script = Script::start();
    // cuInit was never called.
    script.set("cuCtxGetId", 3);
    script.set("cuCtxGetCurrent", 3);
    assert!(matches!(forward(full(), 0), Err(Error::NoContext)));
    // No context was made current.
    script.set("cuCtxGetId", 201);
    script.set("cuCtxGetCurrent", 0);
    script.set("context", 0);
    assert!(matches!(forward(full(), 0), Err(Error::NoContext)));
    // The current one was destroyed.
    script.set("context", 0xC0);
    script.set("cuCtxGetId", 709);
    let error = forward(full(), 0).unwrap_err();
    assert_eq!(error.to_string(), "cuCtxGetId failed: CUDA_ERROR_CONTEXT_IS_DESTROYED (709)");
}

#[test]
fn no_hopper_gpu() {
    let script = Script::start();
    for (major, minor) in [(8, 0), (8, 9), (9, 1), (10, 0), (12, 0)] {
        script.new_context();
        script.set("attribute_75", major);
        script.set("attribute_76", minor);
        let error = forward(full(), 0).unwrap_err();
        assert!(matches!(&error, Error::UnsuitableDevice { device, .. } if device == "Scripted GPU"));
        let found = format!("device 'Scripted GPU' has compute capability {major}.{minor}, but the kernels need compute capability 9.0");
        assert!(error.to_string().starts_with(&found), "{error}");
    }
}

#[test]
fn too_little_shared_memory() {
    let script = Script::start();
    script.new_context();
    script.set("attribute_97", 100 << 10);
    let error = forward(full(), 0).unwrap_err();
    assert!(error.to_string().contains("102400 bytes of shared memory"), "{error}");
}

#[test]
fn driver_too_old_for_the_ptx() {
    let script = Script::start();
    script.new_context();
    script.set("cuModuleLoadDataEx", 222);
    script.set("driver_version", 12000);
    match forward(full(), 0).unwrap_err() {
        Error::DriverTooOld { found, needed, ptx, .. } => assert!(found == (12, 0) && needed >= (12, 3) && ptx >= (8, 3)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kernel_that_cannot_be_compiled() {
    let script = Script::start();
    script.new_context();
    script.set("cuModuleLoadDataEx", 218);
    let error = forward(full(), 0).unwrap_err();
    assert!(matches!(&error, Error::Load { log, .. } if log == "ptxas fatal: scripted"));
    assert!(error.to_string().contains("flash_fwd_hdim128_bf16_sm90") && error.to_string().contains("CUDA_ERROR_INVALID_PTX"), "{error}");
    // The next call tries again, and here the trouble is over.
    script.set("cuModuleLoadDataEx", 0);
    forward(full(), 0).unwrap();
    // A module without the entry is not kept.
    script.new_context();
    script.set("cuModuleGetFunction", 500);
    assert!(matches!(forward(full(), 0), Err(Error::Load { log, .. }) if log.contains("no entry of this name")));
    assert!(script.calls().contains(&"cuModuleUnload".to_owned()));
}

#[test]
fn a_launch_that_fails() {
    let script = Script::start();
    script.set("cuLaunchKernel", 400);
    assert!(matches!(forward(full(), 5), Err(Error::Driver { call: "cuLaunchKernel", .. })));
    script.set("stream_context", 0xC1);
    assert!(matches!(forward(full(), 5), Err(Error::Invalid { field, .. }) if field == "stream"));
    script.set("cuLaunchKernel", 701);
    let error = forward(full(), 5).unwrap_err();
    assert_eq!(error.to_string(), "cuLaunchKernel failed: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)");
    script.set("cuTensorMapEncodeTiled", 1);
    assert!(matches!(forward(full(), 5), Err(Error::Driver { call: "cuTensorMapEncodeTiled", .. })));
}

/// A call that checks addresses is refused with an error that names `field`; one that does not is let through.
fn refused(field: &str) -> String {
    let error = forward(full().check_addresses(true), 0).unwrap_err();
    assert!(matches!(&error, Error::Invalid { field: found, .. } if found == field), "{error}");
    forward(full(), 0).unwrap();
    error.to_string()
}

#[test]
fn addresses_are_checked_on_demand() {
    let script = Script::start();
    script.new_context();
    let checked = full().check_addresses(true);
    forward(checked, 0).unwrap();
    script.calls();
    // The owner and the allocation's range of each of the five.
    forward(checked, 0).unwrap();
    assert_eq!(script.calls().iter().filter(|call| call.starts_with("cuPointerGetAttribute ")).count(), 15);
    // Memory of a context of another device, and of another context of this one.
    script.set("context_of_0x200000000", 0xC1);
    assert!(refused("k.address").contains("of another context"));
    script.set("device_of_0x200000000", 1);
    assert!(refused("k.address").contains("on device 1"));
    script.set("context_of_0x200000000", 0xC0);
    script.set("context_of_0x900000000", 0xC1);
    assert!(refused("lse.address").contains("of another context"));
    script.set("context_of_0x900000000", 0xC0);
    forward(checked, 0).unwrap();
    script.set("cuPointerGetAttribute", 1);
    assert!(refused("q.address").contains("which the driver does not know"));
}

/// Tensors of 32 MiB and an LSE of 512 KiB, see [`SHAPE`].
#[test]
fn tensors_end_within_their_allocation() {
    let script = Script::start();
    script.new_context();
    let checked = full().check_addresses(true);
    let bytes = 2 * SHAPE.iter().product::<usize>() as u64;
    script.set("size_of_0x200000000", bytes);
    script.set("size_of_0x900000000", 4 * LSE.len as u64);
    forward(checked, 0).unwrap();
    script.set("size_of_0x200000000", bytes - 1);
    assert!(refused("k.layout").ends_with("must be within the allocation 0x200000000..0x201ffffff"));
    // The allocation begins before the tensor.
    script.set("start_of_0x200000000", 0x1_ffff_0000);
    script.set("size_of_0x200000000", bytes + 0xffff);
    refused("k.layout");
    script.set("size_of_0x200000000", bytes + 0x10000);
    forward(checked, 0).unwrap();
    script.set("size_of_0x900000000", 4 * LSE.len as u64 - 1);
    refused("lse.len");
}

/// What a driver does not say is no reason to refuse a tensor.
#[test]
fn memory_of_pools_and_mappings() {
    let script = Script::start();
    script.new_context();
    let checked = full().check_addresses(true);
    let last = 0x2_0000_0000 + 2 * SHAPE.iter().product::<usize>() as u64 - 1;
    // It belongs to no context, and its range may be one mapping of several.
    script.set("context_of_0x200000000", 0);
    script.set("size_of_0x200000000", 2 << 20);
    forward(checked, 0).unwrap();
    script.set(&format!("device_of_{last:#x}"), 1);
    assert!(refused("k.address").contains("on device 1"));
    script.set(&format!("device_of_{last:#x}"), 0);
    script.set(&format!("code_of_9_of_{last:#x}"), 1);
    assert!(refused("k.layout").contains(&format!("its last byte is {last:#x}, which the driver does not know")));
    script.set(&format!("code_of_9_of_{last:#x}"), 0);
    // A driver that tells neither owner nor range.
    for attribute in [1, 11, 12] {
        script.set(&format!("code_of_{attribute}_of_0x300000000"), 1);
    }
    forward(checked, 0).unwrap();
}

#[cfg(feature = "cust")]
#[test]
fn the_safe_call_checks_addresses_and_waits() {
    use hopper_attention::{Attention, Tensor};

    let script = Script::start();
    script.new_context();
    let x = Tensor::<half::f16>::zeroed(Layout::bshd([2, 100, 3, 72])).unwrap();
    assert_eq!(script.calls()[..], [format!("cuMemAlloc_v2 {}", 2 * 100 * 3 * 72 * 2).as_str(), "cuMemsetD8_v2", "cuStreamSynchronize"]);
    Tensor::from_slice(&[half::f16::ONE; 8], Layout::bshd([1, 1, 1, 8])).unwrap();
    assert_eq!(script.calls()[..3], ["cuMemAlloc_v2 16", "cuMemcpyHtoD_v2", "cuStreamSynchronize"]);
    let output = Attention::new().causal(true).forward(&x, &x, &x).unwrap();
    assert_eq!((output.o.shape(), output.lse.len()), ([2, 100, 3, 72], 2 * 3 * 100));
    let calls = script.calls();
    let position = |name: &str| calls.iter().rposition(|call| call.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {calls:?}"));
    assert!(position("cuPointerGetAttribute") < position("cuLaunchKernel"));
    assert!(position("cuLaunchKernel") < position("cuStreamSynchronize"));
    assert_eq!(launch_value(&calls, "stream"), "0");
    assert_eq!(launch_value(&calls, "lse"), format!("{:#x}", output.lse.as_device_ptr().as_raw()));

    let address = x.view().as_raw().address;
    script.set(&format!("context_of_{address:#x}"), 0xC1);
    assert!(matches!(Attention::new().forward(&x, &x, &x), Err(Error::Invalid { field, .. }) if field == "q.address"));
    script.set(&format!("context_of_{address:#x}"), 0xC0);
    script.set("cuStreamSynchronize", 700);
    assert!(matches!(Attention::new().forward(&x, &x, &x), Err(Error::Driver { call: "cuStreamSynchronize", .. })));
    script.set("cuMemAlloc_v2", 2);
    let error = Attention::new().forward(&x, &x, &x).unwrap_err();
    assert_eq!(error.to_string(), "cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2)");
    // On a full card, too, what is wrong with the arguments is said first.
    script.calls();
    let two_heads = x.view().slice(hopper_attention::Dim::Heads, 0..2).unwrap();
    assert!(matches!(Attention::new().forward(&x, two_heads, two_heads), Err(Error::Invalid { field, .. }) if field == "q.heads"));
    assert!(
        matches!(Attention::new().softmax_scale(0.0).forward(&x, &x, &x), Err(Error::Invalid { field, .. }) if field == "softmax_scale")
    );
    assert_eq!(script.calls(), Vec::<String>::new());
    let empty = x.view().slice(hopper_attention::Dim::Seqlen, 0..0).unwrap();
    script.set("cuMemAlloc_v2", 0);
    script.set("cuStreamSynchronize", 0);
    script.calls();
    let output = Attention::new().forward(empty, &x, &x).unwrap();
    assert!(output.o.buffer().is_empty() && output.lse.is_empty());
    assert!(!script.calls().iter().any(|call| call.starts_with("cuLaunchKernel")));
}
