//! One plan onto one stream: the whole of a call after the first.

use std::ffi::c_void;
use std::mem::{align_of, size_of};
use std::ptr;

use hopper_attention_driver::{
    CUresult, CUstream, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle, Driver,
};
use hopper_attention_kernels::config::COMBINE_THREADS;
use hopper_attention_kernels::params::{FeatureParams, TensorMap};

use crate::context::Context;
use crate::custom::Custom;
use crate::error::check;
use crate::kernels;
use crate::plan::{CombinePlan, EncodedDims, MapDescription, Plan};
use crate::{DType, Error};

const _: () = assert!(size_of::<CUtensorMap>() == size_of::<TensorMap>() && align_of::<CUtensorMap>() >= align_of::<TensorMap>());

/// Launches the plan's kernel.
///
/// # Safety
///
/// `context` is current. The tensors of the plan are as [`crate::raw::forward`] asks. The plan was made for `custom`, if there is one, whose
/// parameter is what its functions ask for.
pub(crate) unsafe fn enqueue(context: &Context, plan: &Plan, custom: Option<&Custom>, stream: CUstream) -> Result<(), Error> {
    let (function, args) = match custom {
        None => (context.kernel(kernels::forward_index(plan.family, &plan.config, plan.dtype))?, ptr::null()),
        Some(custom) => (context.custom_kernel(custom.kernel)?, custom.args),
    };
    // A map of no keys stays zero: the kernel never reads it.
    let mut maps = [CUtensorMap { opaque: [0; 16] }; 4];
    for (map, description) in maps.iter_mut().zip(&plan.maps) {
        if let Some(description) = description {
            encode(context.driver, map, description)?;
        }
    }
    let [q, k, v, o] = &mut maps;
    let (grid, threads) = (plan.grid(context.multiprocessors), plan.config.threads());
    let mut params = plan.params;
    if plan.draws_tiles(grid) {
        params.scheduler = context.slots.of_stream(context.driver, stream).map_err(|error| context.explain(error, stream))?;
        if params.scheduler == 0 {
            params.schedule = plan.static_schedule();
        }
    }
    let mut features = plan.features.unwrap_or(FeatureParams::NONE);
    let mut arguments: [*mut c_void; 7] = [
        (&raw mut *q).cast(),
        (&raw mut *k).cast(),
        (&raw mut *v).cast(),
        (&raw mut *o).cast(),
        (&raw mut params).cast(),
        (&raw mut features).cast(),
        args.cast_mut(),
    ];
    // SAFETY: the driver reads as many arguments as the kernel takes, each of the size that it declares, and copies them during the call. The
    // kernel takes four tensor maps and the parameters, a general one the features too, and one of the caller's functions its own, in this
    // order and of these sizes: a host test reads the declarations of the texts that are built in, `Kernel::ptx` those of a folder's before
    // they are loaded, and `CustomKernel::from_ptx` those of the caller's, whose `args` `Custom::new` has measured. What the kernel does is
    // what this version's do: for a file of a folder that claims to be one, whoever named the folder answers. It reads the arrays of `features`
    // and of Q, K and V what their maps describe, and writes what O's map and `params.lse` do, for which the caller answers: a ragged map, whose
    // addresses wrap round, is asked only for rows of the tensor, whatever the lengths (see `Mapped::into_ragged`); and a load that lies wholly
    // outside reads where the map begins, which is the tensor's first row.
    let code = unsafe {
        let smem_bytes = plan.config.smem_bytes();
        context.driver.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, smem_bytes, stream, arguments.as_mut_ptr(), ptr::null_mut())
    };
    check("cuLaunchKernel", code).map_err(|error| context.explain(error, stream))
}

/// Launches the kernel that combines.
///
/// # Safety
///
/// `context` is current. The tensors of the plan are as [`crate::raw::combine`] asks.
pub(crate) unsafe fn combine(context: &Context, plan: &mut CombinePlan, stream: CUstream) -> Result<(), Error> {
    let function = context.kernel(kernels::combine_index(plan.dtype))?;
    let grid = plan.grid(context.multiprocessors);
    let mut arguments: [*mut c_void; 1] = [(&raw mut *plan.params).cast()];
    // SAFETY: the kernel takes one parameter, of the size of these, as those that are built in do by a host test, and a folder's by
    // `Kernel::ptx`; the driver copies it during the call. The kernel reads the parts and writes `o` and `lse`, for which the
    // caller answers.
    let code = unsafe {
        context.driver.cuLaunchKernel(function, grid, 1, 1, COMBINE_THREADS, 1, 1, 0, stream, arguments.as_mut_ptr(), ptr::null_mut())
    };
    check("cuLaunchKernel", code).map_err(|error| context.explain(error, stream))
}

fn encode(driver: &Driver, map: &mut CUtensorMap, description: &MapDescription) -> Result<(), Error> {
    let data_type = match description.dtype {
        DType::F16 => CUtensorMapDataType::FLOAT16,
        DType::Bf16 => CUtensorMapDataType::BFLOAT16,
    };
    let element_strides = [1; 5];
    let EncodedDims { rank, dims, strides_bytes, box_dims } = description.encoded();
    // SAFETY: a pure function of its arguments: the arrays have the lengths that a rank of 5 asks for, and `map` is aligned to 64 bytes.
    let code: CUresult = unsafe {
        driver.cuTensorMapEncodeTiled(
            map,
            data_type,
            rank,
            ptr::without_provenance_mut(description.address as usize),
            dims.as_ptr(),
            strides_bytes.as_ptr(),
            box_dims.as_ptr(),
            element_strides.as_ptr(),
            CUtensorMapInterleave::NONE,
            CUtensorMapSwizzle::SWIZZLE_128B,
            CUtensorMapL2promotion::L2_128B,
            CUtensorMapFloatOOBfill::NONE,
        )
    };
    check("cuTensorMapEncodeTiled", code)
}
