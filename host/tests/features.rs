//! Windows, soft caps, lengths, sinks: what the library asks of the driver for them.

mod scripted;

use std::ptr;

use hopper_attention::raw::{Array, Arrays, Options};
use hopper_attention::{DType, Error, Layout, raw};
use scripted::Script;

const CU_SEQLENS: Array = Array { address: 0xA_0000_0000, len: 4 };
const SINKS: Array = Array { address: 0xB_0000_0000, len: 16 };

/// Three sequences, packed in 8192 rows.
fn tensor(address: u64) -> raw::Tensor4 {
    raw::Tensor4 { address, dtype: DType::Bf16, layout: Layout::bshd([1, 8192, 16, 128]) }
}

fn forward(options: Options, arrays: &Arrays) -> Result<(), Error> {
    let [q, k, v, o] = [0x1_0000_0000, 0x2_0000_0000, 0x3_0000_0000, 0x4_0000_0000].map(tensor);
    // SAFETY: the scripted driver reads and writes no device memory, and has no streams that could be dead.
    unsafe { raw::forward_with(&q, &k, &v, &o, None, &options, arrays, ptr::without_provenance_mut(7)) }
}

fn packed() -> Arrays {
    Arrays::new().cu_seqlens_q(CU_SEQLENS).cu_seqlens_k(CU_SEQLENS)
}

fn starting<'a>(calls: &'a [String], name: &str) -> Vec<&'a str> {
    calls.iter().filter_map(|call| call.strip_prefix(name)).collect()
}

#[test]
fn each_combination_loads_its_kernel() {
    let script = Script::start();
    script.new_context();
    let (none, slopes) = (Arrays::new(), Arrays::new().alibi_slopes(SINKS));
    let window = Options::new().window(Some(100), Some(0));
    for (options, arrays, entry) in [
        (window, none, "general"),
        (window, slopes, "general_alibi"),
        (Options::new().softcap(30.0), packed(), "general_softcap"),
        (Options::new().window(Some(8191), Some(0)), none, "causal"),
    ] {
        forward(options, &arrays).unwrap();
        let entry = format!(" flash_fwd_hdim128_bf16_{entry}_sm90");
        assert_eq!(starting(&script.calls(), "cuModuleLoadDataEx"), [entry]);
    }
    script.new_context();
    for (options, arrays) in [(window, none), (window, slopes), (Options::new().softcap(30.0), packed())] {
        raw::prepare_with(104, DType::Bf16, &options, &arrays).unwrap();
        assert_eq!(starting(&script.calls(), "cuModuleLoadDataEx").len(), 1);
        forward(options, &arrays).unwrap();
        assert!(starting(&script.calls(), "cuModuleLoadDataEx").is_empty());
    }
    let both = raw::prepare_with(64, DType::F16, &Options::new().softcap(1.0), &slopes);
    assert!(matches!(both, Err(Error::Unsupported { field, .. }) if field == "softcap"));
}

/// A program that prepares its kernels at its start learns of wrong options there, and nothing is loaded for them.
#[test]
fn options_that_every_call_refuses_are_not_prepared() {
    let script = Script::start();
    script.new_context();
    let slopes = Arrays::new().alibi_slopes(raw::Array { address: 0x10000, len: 1 });
    for (options, arrays, wrong) in [
        (Options::new().softcap(f32::NAN), Arrays::new(), "softcap"),
        (Options::new().softcap(1e-40), Arrays::new(), "softcap"),
        (Options::new().softmax_scale(f32::NAN), Arrays::new(), "softmax_scale"),
        (Options::new().softmax_scale(-1.0).causal(true), Arrays::new(), "softmax_scale"),
        (Options::new().softmax_scale(3e38), slopes, "softmax_scale"),
    ] {
        let error = raw::prepare_with(64, DType::F16, &options, &arrays).unwrap_err();
        assert!(matches!(&error, Error::Invalid { field, .. } if field == wrong), "{error}");
    }
    assert_eq!(script.calls(), [""; 0]);
}

/// What is prepared for a pair of head dims is what a call with it runs.
#[test]
fn unequal_head_dims_are_prepared() {
    let script = Script::start();
    let (plain, none, sinks) = (Options::new(), Arrays::new(), Arrays::new().sinks(SINKS));
    for (pair, options, arrays, entry) in [
        ((192, 128), plain, none, "hdim192_128_bf16"),
        ((136, 64), plain.causal(true), none, "hdim192_128_bf16_causal"),
        ((192, 128), plain, sinks, "hdim192_128_bf16_general"),
        ((192, 128), plain.softcap(30.0), none, "hdim192_bf16_general_softcap"),
        ((192, 136), plain, none, "hdim192_bf16"),
        ((64, 128), plain, none, "hdim128_bf16"),
        ((128, 192), plain.causal(true), none, "hdim192_bf16_causal"),
    ] {
        script.new_context();
        raw::prepare_with(pair, DType::Bf16, &options, &arrays).unwrap();
        // A plain kernel with the general one for few queries.
        let general = format!("{}_general", entry.trim_end_matches("_causal"));
        let entries = if entry.contains("general") { vec![entry] } else { vec![entry, &general] };
        let expected: Vec<_> = entries.iter().map(|entry| format!(" flash_fwd_{entry}_sm90")).collect();
        assert_eq!(starting(&script.calls(), "cuModuleLoadDataEx"), expected);
        let head_dims = [pair.0, pair.0, pair.1, pair.1];
        let [q, k, v, o] = [0, 1, 2, 3].map(|i| {
            let layout = Layout::bshd([1, 1024, 16, head_dims[i]]);
            raw::Tensor4 { layout, ..tensor((i as u64 + 1) << 32) }
        });
        // SAFETY: as in `forward`.
        unsafe { raw::forward_with(&q, &k, &v, &o, None, &options, &arrays, ptr::without_provenance_mut(7)) }.unwrap();
        assert!(starting(&script.calls(), "cuModuleLoadDataEx").is_empty(), "{pair:?}");
    }
    for (pair, wrong) in [((264, 64), "head_dim"), ((64, 264), "head_dim_v"), ((64, 4), "head_dim_v"), ((0, 0), "head_dim")] {
        let refused = raw::prepare(pair, DType::Bf16, &plain);
        assert!(matches!(&refused, Err(Error::Unsupported { field, .. }) if field == wrong), "{pair:?}: {refused:?}");
    }
}

#[test]
fn a_ragged_launch_neither_allocates_nor_waits() {
    let script = Script::start();
    script.new_context();
    forward(Options::new(), &packed()).unwrap();
    script.calls();
    forward(Options::new(), &packed()).unwrap();
    let calls = script.calls();
    let encode = "cuTensorMapEncodeTiled";
    assert_eq!(calls[..7], ["cuCtxGetId", encode, encode, encode, encode, "cuStreamGetCaptureInfo_v2", "cuStreamGetId"]);
    let launch = calls[7].strip_prefix("cuLaunchKernel ").expect("a launch");
    // Where the tensors do.
    assert!(launch.contains("maps=0x100000000,0x200000000,0x300000000,0x400000000"), "{launch}");
    assert!(!launch.contains("scheduler=0x0"), "{launch}");
    assert_eq!(calls.len(), 8);
}

#[test]
fn addresses_of_arrays_are_checked_on_demand() {
    let script = Script::start();
    script.new_context();
    let (checked, arrays) = (Options::new().check_addresses(true), packed().sinks(SINKS));
    forward(checked, &arrays).unwrap();
    script.set("context_of_0xb00000000", 0xC1);
    assert!(matches!(forward(checked, &arrays), Err(Error::Invalid { field, .. }) if field == "sinks.address"));
    script.set("context_of_0xb00000000", 0xC0);
    script.set("size_of_0xa00000000", 16);
    forward(checked, &arrays).unwrap();
    script.set("size_of_0xa00000000", 15);
    assert!(matches!(forward(checked, &arrays), Err(Error::Invalid { field, .. }) if field == "cu_seqlens_q.len"));
}

#[test]
fn lengths_are_checked_on_demand() {
    let script = Script::start();
    script.new_context();
    let used = Array { address: 0xC_0000_0000, len: 3 };
    let check = |arrays: Arrays| {
        // SAFETY: the scripted driver reads no device memory, and has no streams that could be dead.
        unsafe { raw::check_lengths(&tensor(0), &tensor(0), &arrays, ptr::without_provenance_mut(7)) }
    };
    check(Arrays::new().sinks(SINKS)).unwrap();
    assert!(script.calls().is_empty());
    script.set("word_at_0xa00000000", 8192);
    check(packed().seqused_k(used)).unwrap();
    let copies =
        ["cuMemcpyDtoHAsync_v2 0xa00000000 16 7", "cuMemcpyDtoHAsync_v2 0xa00000000 16 7", "cuMemcpyDtoHAsync_v2 0xc00000000 12 7"];
    let expected: Vec<_> = copies.iter().flat_map(|copy| [*copy, "cuStreamSynchronize"]).collect();
    assert_eq!(script.calls(), expected);
    script.set("word_at_0xc00000000", 1);
    assert_eq!(
        check(packed().seqused_k(used)).unwrap_err().to_string(),
        "seqused_k[0] is 1, but must be from 0 to 0, the rows of its sequence"
    );
    script.set("word_at_0xa00000000", 8193);
    let error = check(packed()).unwrap_err().to_string();
    assert_eq!(error, "cu_seqlens_q[0] is 8193, but must be at most 8192, as the tensor has so many rows");
    assert!(matches!(check(packed().seqused_q(Array { len: 4, ..used })), Err(Error::Invalid { field, .. }) if field == "seqused_q.len"));
    script.set("cuMemcpyDtoHAsync_v2", 1);
    assert!(matches!(check(packed()), Err(Error::Driver { call: "cuMemcpyDtoHAsync_v2", .. })));
}

#[cfg(feature = "cust")]
#[test]
fn the_safe_call_checks_lengths_and_initialises() {
    use cust::memory::DeviceBuffer;
    use hopper_attention::{Arrays, Attention, Output, Tensor};

    let script = Script::start();
    script.new_context();
    let x = Tensor::<half::f16>::zeroed(Layout::bshd([1, 100, 4, 64])).unwrap();
    let cu_seqlens = DeviceBuffer::from_slice(&[0i32, 40, 100]).unwrap();
    let sinks = DeviceBuffer::from_slice(&[0f32; 4]).unwrap();
    let address = cu_seqlens.as_device_ptr().as_raw();
    let arrays = Arrays::new().cu_seqlens_q(&cu_seqlens).cu_seqlens_k(&cu_seqlens).sinks(&sinks);
    let attention = Attention::new().window(Some(10), None);
    script.calls();
    let output = attention.forward_with(&x, &x, &x, &arrays).unwrap();
    assert_eq!((output.o.shape(), output.lse.len()), ([1, 100, 4, 64], 400));
    let calls = script.calls();
    let position = |name: &str| calls.iter().position(|call| call.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {calls:?}"));
    let order = ["cuMemcpyDtoHAsync_v2", "cuMemAlloc_v2", "cuMemsetD8_v2", "cuMemcpyHtoD_v2", "cuPointerGetAttribute", "cuLaunchKernel"]
        .map(position);
    assert!(order.is_sorted(), "{calls:?}");
    assert_eq!(calls.last().unwrap(), "cuStreamSynchronize");

    // Lengths beyond the tensor: no memory is asked for.
    script.set(&format!("word_at_{address:#x}"), 101);
    assert!(matches!(attention.forward_with(&x, &x, &x, &arrays), Err(Error::Invalid { field, .. }) if field == "cu_seqlens_q[0]"));
    let calls = script.calls();
    assert!(starting(&calls, "cuMemAlloc_v2").is_empty() && starting(&calls, "cuLaunchKernel").is_empty(), "{calls:?}");

    // Without lengths there is nothing to read, and nothing to initialise.
    attention.forward_with(&x, &x, &x, &Arrays::new().sinks(&sinks)).unwrap();
    let calls = script.calls();
    assert!(starting(&calls, "cuMemcpy").is_empty() && starting(&calls, "cuMemset").is_empty(), "{calls:?}");
    Output::combine_with_sinks(&[&output, &output], &sinks).unwrap();
    let sinks_address = sinks.as_device_ptr().as_raw();
    script.set(&format!("context_of_{sinks_address:#x}"), 0xC1);
    let merged = Output::combine_with_sinks(&[&output, &output], &sinks);
    assert!(matches!(merged, Err(Error::Invalid { field, .. }) if field == "sinks.address"));
}
