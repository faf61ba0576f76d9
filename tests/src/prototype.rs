//! The prototype of this project's kernels, made by two compilers of one source (`data/prototype/README.md`): how it is launched.

use crate::call::Call;
use crate::case::ElementType;
use crate::gpu::{Buffer, Handle, check, driver};
use crate::{Failure, ensure};
use hopper_attention::Layout;
use hopper_attention_driver::{
    CUdevice_attribute, CUfunction, CUfunction_attribute, CUmodule, CUresult, CUstream, CUtensorMap, CUtensorMapDataType,
    CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use std::f64::consts::LOG2_E;
use std::ffi::CString;
use std::ptr;

/// Who compiled the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// rustc's own target.
    Rustc,
    /// `rustc_codegen_nvvm` with libNVVM.
    RustCuda,
}

impl Compiler {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Rustc, Self::RustCuda];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rustc => "rustc",
            Self::RustCuda => "rust-cuda",
        }
    }
}

/// A kernel of the prototype.
#[derive(Debug)]
pub struct Kernel {
    /// Its entry.
    pub name: &'static str,
    /// Element type of Q, K, V and O.
    pub dtype: ElementType,
    /// Whether it has the causal mask.
    pub causal: bool,
    /// Elements of a head.
    pub head_dim: usize,
    tile_n: usize,
    /// Of 64 queries each.
    math_warpgroups: usize,
    q_stages: usize,
    /// In the order of [`Compiler::ALL`].
    ptx: [&'static str; 2],
}

macro_rules! kernels {
    ($($name:literal: $dtype:ident, causal $causal:literal, head_dim $head_dim:literal, tile_n $tile_n:literal,
       math_warpgroups $math_warpgroups:literal, q_stages $q_stages:literal;)*) => {
        [$(Kernel {
            name: $name,
            dtype: ElementType::$dtype,
            causal: $causal,
            head_dim: $head_dim,
            tile_n: $tile_n,
            math_warpgroups: $math_warpgroups,
            q_stages: $q_stages,
            ptx: [
                include_str!(concat!(env!("OUT_DIR"), "/prototype/rustc/", $name, ".ptx")),
                include_str!(concat!(env!("OUT_DIR"), "/prototype/rust_cuda/", $name, ".ptx")),
            ],
        }),*]
    };
}

/// All of them.
pub static KERNELS: [Kernel; 11] = kernels! {
    "fa_d64_b128":       F16,  causal false, head_dim 64,  tile_n 128, math_warpgroups 2, q_stages 2;
    "fa_3wg_d64_b128":   F16,  causal false, head_dim 64,  tile_n 128, math_warpgroups 3, q_stages 2;
    "fa_d64_b128_c":     F16,  causal true,  head_dim 64,  tile_n 128, math_warpgroups 2, q_stages 2;
    "fa_3wg_d64_b128_c": F16,  causal true,  head_dim 64,  tile_n 128, math_warpgroups 3, q_stages 2;
    "fa_d128_b128":      F16,  causal false, head_dim 128, tile_n 128, math_warpgroups 2, q_stages 2;
    "fa_1q_d128_b176":   F16,  causal false, head_dim 128, tile_n 176, math_warpgroups 2, q_stages 1;
    "fa_d128_b128_bf":   Bf16, causal false, head_dim 128, tile_n 128, math_warpgroups 2, q_stages 2;
    "fa_d128_b128_c":    F16,  causal true,  head_dim 128, tile_n 128, math_warpgroups 2, q_stages 2;
    "fa_d128_b128_bf_c": Bf16, causal true,  head_dim 128, tile_n 128, math_warpgroups 2, q_stages 2;
    "fa_1q_d256_b80":    F16,  causal false, head_dim 256, tile_n 80,  math_warpgroups 2, q_stages 1;
    "fa_1q_d256_b80_c":  F16,  causal true,  head_dim 256, tile_n 80,  math_warpgroups 2, q_stages 1;
};

impl Kernel {
    fn tile_m(&self) -> usize {
        64 * self.math_warpgroups
    }

    /// Two stages of K and V, and what barriers and tile ranks take.
    fn smem_bytes(&self) -> u32 {
        let elements = (self.q_stages * self.tile_m() + 4 * self.tile_n) * self.head_dim;
        (2 * elements + 256) as u32
    }

    /// Loads what a compiler made of it into the current context.
    pub fn load(&'static self, compiler: Compiler) -> Result<Loaded, Failure> {
        let name = format!("{} by {}", self.name, compiler.name());
        Loaded::new(self, self.ptx[compiler as usize], name.clone()).map_err(|failure| failure.during(name))
    }
}

/// The last parameter of every kernel.
#[repr(C)]
struct Sizes {
    seqlen: u32,
    num_heads: u32,
    batch: u32,
    m_blocks: u32,
    tiles: u32,
    softmax_scale_log2: f32,
    /// Heads whose causal tiles are taken together; divides all heads of the batch.
    section_heads: u32,
    padding: u32,
}

/// A kernel in a context.
#[derive(Debug)]
pub struct Loaded {
    kernel: &'static Kernel,
    /// Its name and its compiler's.
    pub name: String,
    module: Handle<CUmodule>,
    function: Handle<CUfunction>,
    /// Two counters, which the last CTA of a launch sets back to zero.
    scheduler: Buffer,
    multiprocessors: u32,
}

impl Loaded {
    fn new(kernel: &'static Kernel, ptx: &str, name: String) -> Result<Self, Failure> {
        let driver = driver()?;
        let text = |text: &str| CString::new(text).map_err(|error| Failure(error.to_string()));
        let (image, entry) = (text(ptx)?, text(kernel.name)?);
        let (mut device, mut multiprocessors) = (0, 0);
        // SAFETY: both are writable, and the second call's device comes from the first.
        unsafe {
            check("cuCtxGetDevice", driver.cuCtxGetDevice(&mut device))?;
            let count = driver.cuDeviceGetAttribute(&mut multiprocessors, CUdevice_attribute::MULTIPROCESSOR_COUNT, device);
            check("cuDeviceGetAttribute", count)?;
        }
        let mut module = ptr::null_mut();
        // SAFETY: the image is text that ends in NUL; no options.
        let code = unsafe { driver.cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 0, ptr::null_mut(), ptr::null_mut()) };
        check("cuModuleLoadDataEx", code)?;
        let scheduler = Buffer::new(8)?;
        scheduler.write(0, &[0u32; 2])?;
        let multiprocessors = multiprocessors as u32;
        let mut loaded = Self { kernel, name, module: Handle(module), function: Handle(ptr::null_mut()), scheduler, multiprocessors };
        // SAFETY: the module was loaded above, and the entry's name ends in NUL.
        check("cuModuleGetFunction", unsafe { driver.cuModuleGetFunction(&mut loaded.function.0, module, entry.as_ptr()) })?;
        let smem = CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is the module's.
        check("cuFuncSetAttribute", unsafe { driver.cuFuncSetAttribute(loaded.function.0, smem, kernel.smem_bytes() as i32) })?;
        Ok(loaded)
    }

    /// Enqueues the attention that `call` describes: contiguous `[batch, seqlen, heads, head_dim]`, all of one shape, the default scale, nothing but the
    /// kernel's own mask.
    ///
    /// # Safety
    ///
    /// The tensors of the call lie in memory of the current context, in which this was loaded, and are used by nobody else until the work on the
    /// stream is done; neither is this value.
    pub unsafe fn enqueue(&self, call: &Call, stream: CUstream) -> Result<(), Failure> {
        let shape @ [batch, seqlen, num_heads, head_dim] = call.q.layout.shape;
        let tensors = [&call.q, &call.k, &call.v, &call.o];
        let alike = tensors.iter().all(|tensor| tensor.layout == Layout::bshd(shape) && tensor.dtype == self.kernel.dtype.dtype());
        ensure!(alike && head_dim == self.kernel.head_dim, "{} cannot compute {call:?}", self.name);
        let Some(lse) = call.lse else { return Err("the prototype always writes a log-sum-exp".into()) };
        let heads = batch * num_heads;
        let m_blocks = seqlen.div_ceil(self.kernel.tile_m());
        // So many heads' K and V are half of the L2.
        let section = ((1 << 25) / (4 * seqlen * head_dim)).clamp(1, heads);
        let mut sizes = Sizes {
            seqlen: seqlen as u32,
            num_heads: num_heads as u32,
            batch: batch as u32,
            m_blocks: m_blocks as u32,
            tiles: (m_blocks * heads) as u32,
            softmax_scale_log2: (LOG2_E / (head_dim as f64).sqrt()) as f32,
            section_heads: if heads.is_multiple_of(section) { section as u32 } else { 1 },
            padding: 0,
        };
        let mut maps = [CUtensorMap { opaque: [0; 16] }; 4];
        let box_rows = [64, self.kernel.tile_n, self.kernel.tile_n, 64];
        for ((map, tensor), rows) in maps.iter_mut().zip(tensors).zip(box_rows) {
            encode(map, self.kernel.dtype, tensor.address, shape, rows as u32)?;
        }
        let [q, k, v, o] = &mut maps;
        let (mut lse, mut scheduler) = (lse.address, self.scheduler.address());
        let mut arguments = [
            (&raw mut *q).cast(),
            (&raw mut *k).cast(),
            (&raw mut *v).cast(),
            (&raw mut *o).cast(),
            (&raw mut lse).cast(),
            (&raw mut scheduler).cast(),
            (&raw mut sizes).cast(),
        ];
        let (grid, threads) = (sizes.tiles.min(self.multiprocessors), 128 * (1 + self.kernel.math_warpgroups as u32));
        let (function, smem_bytes) = (self.function.0, self.kernel.smem_bytes());
        // SAFETY: the kernel takes four tensor maps, two pointers and the sizes, in this order, and the driver copies them during the call. It
        // reads and writes what the maps describe, `lse`, and the two counters; that the tensors are there is the caller's promise.
        let code = unsafe {
            driver()?.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, smem_bytes, stream, arguments.as_mut_ptr(), ptr::null_mut())
        };
        check("cuLaunchKernel", code)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if let Ok(driver) = driver() {
            // SAFETY: the module is this value's own, and nothing of it is in use.
            let _: CUresult = unsafe { driver.cuModuleUnload(self.module.0) };
        }
    }
}

/// A map of boxes of `rows` positions of one head, in panels of 64 columns.
fn encode(map: &mut CUtensorMap, dtype: ElementType, address: u64, shape: [usize; 4], rows: u32) -> Result<(), Failure> {
    let [batch, seqlen, num_heads, head_dim] = shape.map(|extent| extent as u64);
    let data_type = match dtype {
        ElementType::F16 => CUtensorMapDataType::FLOAT16,
        ElementType::Bf16 => CUtensorMapDataType::BFLOAT16,
    };
    let dims = [64, seqlen, head_dim / 64, num_heads, batch];
    let row_bytes = 2 * num_heads * head_dim;
    let strides_bytes = [row_bytes, 128, 2 * head_dim, seqlen * row_bytes];
    let box_dims = [64, rows, head_dim as u32 / 64, 1, 1];
    // SAFETY: a pure function of its arguments: the arrays have the lengths that a rank of 5 asks for, and `map` is aligned to 64 bytes.
    let code = unsafe {
        driver()?.cuTensorMapEncodeTiled(
            map,
            data_type,
            5,
            ptr::without_provenance_mut(address as usize),
            dims.as_ptr(),
            strides_bytes.as_ptr(),
            box_dims.as_ptr(),
            [1; 5].as_ptr(),
            CUtensorMapInterleave::NONE,
            CUtensorMapSwizzle::SWIZZLE_128B,
            CUtensorMapL2promotion::L2_128B,
            CUtensorMapFloatOOBfill::NONE,
        )
    };
    check("cuTensorMapEncodeTiled", code)
}
