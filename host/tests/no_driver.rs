//! A machine without a CUDA driver gets a typed error, not a loader failure. The variable that names the driver is process-wide and read
//! once, so this is the only test of its file.

use hopper_attention::{DType, Error, Layout, raw};

#[test]
fn every_door_says_that_there_is_no_driver() {
    // SAFETY: no other thread of this process reads or writes the environment.
    unsafe { std::env::set_var("HOPPER_ATTENTION_DRIVER", "/nonexistent/libcuda.so.1") };
    let tensor = |address| raw::Tensor4 { address, dtype: DType::F16, layout: Layout::bshd([1, 100, 2, 64]) };
    let (q, k, v, o) = (tensor(0x10000), tensor(0x20000), tensor(0x30000), tensor(0x40000));
    let forward = |q: &raw::Tensor4, options: &raw::Options| {
        // SAFETY: without a driver nothing can be launched.
        unsafe { raw::forward(q, &k, &v, &o, None, options, std::ptr::null_mut()) }
    };
    let no_driver = |error: Error| {
        assert!(matches!(error, Error::NoDriver(_)), "{error:?}");
        assert!(error.to_string().contains("/nonexistent/libcuda.so.1"), "{error}");
    };
    no_driver(forward(&q, &raw::Options::default()).unwrap_err());
    no_driver(raw::prepare(64, DType::F16, &raw::Options::new()).unwrap_err());

    // What is wrong with the arguments is said first.
    let options = raw::Options::new().softmax_scale(-1.0);
    assert!(matches!(forward(&q, &options), Err(Error::Invalid { field, .. }) if field == "softmax_scale"));
    assert!(matches!(raw::prepare(7, DType::F16, &raw::Options::new()), Err(Error::Unsupported { field, .. }) if field == "head_dim"));
    // Nothing to compute needs no driver.
    let empty = |tensor: raw::Tensor4| tensor.slice(hopper_attention::Dim::Batch, 0..0).unwrap();
    // SAFETY: the tensors are empty.
    unsafe { raw::forward(&empty(q), &empty(k), &empty(v), &empty(o), None, &Default::default(), std::ptr::null_mut()) }.unwrap();

    #[cfg(feature = "cust")]
    no_driver(hopper_attention::Tensor::<half::f16>::zeroed(Layout::bshd([1, 1, 1, 8])).unwrap_err());
}
