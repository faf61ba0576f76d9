//! Kernels of the caller's own score and mask functions.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hopper_attention_kernels::config::{MAX_SMEM_BYTES, TileConfig, custom_config};
use hopper_attention_kernels::params::{INTERFACE, VERSION};

use crate::context::Context;
use crate::signature::{GENERAL_PARAMETERS, Signature};
use crate::{DType, Error};

/// How the line of a PTX file begins by which `hopper-attention-builder` hands on what its kernel says of itself.
const FACTS: &str = "// attention_kernel ";

/// A forward kernel with a score function and a mask function compiled in: `forward_kernel!` of `hopper-attention-kernels`, built by
/// `hopper-attention-builder`. [`crate::raw::forward_custom`] launches it with a parameter of type `A`, the `args` of `forward_kernel!`, and no
/// other type compiles there:
///
/// ```no_run
/// # use hopper_attention::{CustomKernel, raw};
/// # fn launch(kernel: &CustomKernel<[u32; 4]>, x: &raw::Tensor4) -> Result<(), hopper_attention::Error> {
/// let (options, arrays) = (raw::Options::new(), raw::Arrays::new());
/// unsafe { raw::forward_custom(kernel, &[0u32; 4], x, x, x, x, None, &options, &arrays, std::ptr::null_mut()) }
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # use hopper_attention::{CustomKernel, raw};
/// # fn launch(kernel: &CustomKernel<[u32; 4]>, x: &raw::Tensor4) -> Result<(), hopper_attention::Error> {
/// let (options, arrays) = (raw::Options::new(), raw::Arrays::new());
/// unsafe { raw::forward_custom(kernel, &[0u64; 2], x, x, x, x, None, &options, &arrays, std::ptr::null_mut()) }
/// # }
/// ```
///
/// Make one of each kernel and keep it: a context loads the kernel's module at the first launch, for each kernel made here, and keeps it until the
/// context is destroyed. A clone is the same kernel.
///
/// ```no_run
/// # #[derive(Clone, Copy)] struct DocumentArgs;
/// let ptx = std::fs::read_to_string("ptx/documents_hdim64_bf16.ptx")?;
/// let kernel = hopper_attention::CustomKernel::<DocumentArgs>::from_ptx(ptx)?;
/// println!("{} serves head_dims up to {} of {}", kernel.entry(), kernel.head_dim(), kernel.dtype());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CustomKernel<A: ?Sized> {
    kernel: Arc<Kernel>,
    args: PhantomData<fn(&A)>,
}

/// The bytes of a parameter whose type is known to others only, such as the callers of a C interface.
pub type ArgsBytes = [MaybeUninit<u8>];

/// A kernel, whatever its parameter.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// No two kernels of a process have the same.
    id: u64,
    ptx: String,
    facts: Facts,
}

/// What a kernel says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    entry: String,
    config: TileConfig,
    dtype: DType,
    has_score: bool,
    args_bytes: usize,
}

impl<A: Copy> CustomKernel<A> {
    /// The kernel of a PTX file's text, as `hopper-attention-builder` made it of a `forward_kernel!` of this version with `A` for its `args`; a
    /// launch relies on its being that.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the text does not hold one kernel of `forward_kernel!`, or one made with another version of this project: then build
    /// it again; also if its parameter is not of the size of `A`. Whether the driver takes it is seen when it is loaded.
    pub fn from_ptx(ptx: impl Into<String>) -> Result<Self, Error> {
        let kernel = Kernel::from_ptx(ptx.into())?;
        kernel.check_args(size_of::<A>())?;
        Ok(Self { kernel: Arc::new(kernel), args: PhantomData })
    }
}

impl CustomKernel<ArgsBytes> {
    /// [`CustomKernel::from_ptx`] where nobody knows the type of the parameter: each launch checks how many bytes it is given.
    ///
    /// # Errors
    ///
    /// As [`CustomKernel::from_ptx`], but for the size.
    pub fn from_ptx_untyped(ptx: impl Into<String>) -> Result<Self, Error> {
        Ok(Self { kernel: Arc::new(Kernel::from_ptx(ptx.into())?), args: PhantomData })
    }
}

impl<A: ?Sized> CustomKernel<A> {
    /// The name of the kernel.
    pub fn entry(&self) -> &str {
        self.kernel.entry()
    }

    /// The largest head_dim that it serves, of Q and K as well as of V and O; smaller ones cost as much.
    pub fn head_dim(&self) -> usize {
        self.kernel.head_dim()
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.kernel.dtype()
    }

    /// Keys that it takes a step.
    pub fn tile_n(&self) -> usize {
        self.kernel.config().tile_n as usize
    }

    /// Bytes of its own parameter.
    pub fn args_bytes(&self) -> usize {
        self.kernel.facts.args_bytes
    }

    /// Loads the kernel into the current context, if it is not there yet, which takes as long as for one that ships:
    /// tenths of a second to more than one.
    ///
    /// # Errors
    ///
    /// [`Error::Load`] if the driver refuses it, and those of [`crate::raw::forward`] that concern driver, context and device.
    pub fn prepare(&self) -> Result<(), Error> {
        Context::current()?.custom_kernel(&self.kernel).map(|_| ())
    }
}

impl<A: ?Sized> Clone for CustomKernel<A> {
    fn clone(&self) -> Self {
        Self { kernel: self.kernel.clone(), args: PhantomData }
    }
}

impl<A: ?Sized> fmt::Debug for CustomKernel<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CustomKernel").field(&self.kernel.facts).finish()
    }
}

impl Kernel {
    fn from_ptx(ptx: String) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let facts = Facts::read(&ptx)?;
        Ok(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), ptx, facts })
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn ptx(&self) -> &str {
        &self.ptx
    }

    pub fn entry(&self) -> &str {
        &self.facts.entry
    }

    pub fn head_dim(&self) -> usize {
        self.facts.config.head_dim as usize
    }

    pub fn config(&self) -> TileConfig {
        self.facts.config
    }

    pub fn dtype(&self) -> DType {
        self.facts.dtype
    }

    /// Whether scores are in natural units when the softmax gets them.
    pub fn has_score(&self) -> bool {
        self.facts.has_score
    }

    fn check_args(&self, bytes: usize) -> Result<(), Error> {
        let expected = self.facts.args_bytes;
        if bytes == expected {
            return Ok(());
        }
        let requirement = format!("of {expected} bytes, like the parameter that {} was defined with", self.entry());
        Err(Error::invalid("args", format!("of {bytes} bytes"), requirement))
    }
}

/// A kernel for one call, with its own parameter.
pub(crate) struct Custom<'a> {
    pub kernel: &'a Kernel,
    /// Points to as many bytes as the kernel takes.
    pub args: *const c_void,
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Custom<'a> {
    pub fn new<A: ?Sized>(kernel: &'a CustomKernel<A>, args: &'a A) -> Result<Self, Error> {
        kernel.kernel.check_args(size_of_val(args))?;
        Ok(Self { kernel: &kernel.kernel, args: (&raw const *args).cast(), borrowed: PhantomData })
    }
}

impl Facts {
    fn read(ptx: &str) -> Result<Self, Error> {
        let refuse = |value: &str, requirement: &str| Err(Error::invalid("ptx", value, requirement));
        if ptx.contains('\0') {
            return refuse("a text with a NUL character", "the PTX of one kernel");
        }
        let entries: Vec<&str> = ptx.lines().filter_map(|line| line.trim().strip_prefix(".visible .entry ")).collect();
        let [entry] = entries[..] else {
            return refuse(&format!("a text with {} entries", entries.len()), "the PTX of one kernel");
        };
        let entry = entry.split('(').next().unwrap_or(entry).trim();
        let Some(words) = ptx.lines().find_map(|line| line.strip_prefix(FACTS)).map(|facts| facts.split(' ').collect::<Vec<_>>()) else {
            return refuse(entry, "a kernel that forward_kernel! defines and hopper-attention-builder builds: its facts are missing");
        };
        let [
            version,
            "interface",
            interface,
            "head_dim",
            head_dim,
            "tile_n",
            tile_n,
            "bf16",
            bf16,
            "has_score",
            has_score,
            "args_bytes",
            args_bytes,
        ] = words[..]
        else {
            return refuse(entry, &format!("a kernel whose facts this version understands, and they are: {}", words.join(" ")));
        };
        let own = (VERSION.map(|number| number.to_string()).join("."), INTERFACE.to_string());
        if (version, interface) != (&own.0, &own.1) {
            let requirement = format!("made with version {}, interface {}, those of this library: build it again", own.0, own.1);
            return refuse(&format!("{entry}, made with version {version}, interface {interface}"), &requirement);
        }
        let flag = |word: &str| ["0", "1"].iter().position(|&flag| flag == word).map(|flag| flag == 1);
        let shape = head_dim.parse().ok().and_then(|head_dim| custom_config(head_dim).filter(|shape| shape.head_dim == head_dim));
        let tile_n = tile_n.parse().ok().filter(|tile_n: &u32| (16..=256).contains(tile_n) && tile_n.is_multiple_of(16));
        let config = shape.zip(tile_n).map(|(shape, tile_n)| TileConfig { tile_n, ..shape });
        match (
            config.filter(|config| config.smem_bytes() <= MAX_SMEM_BYTES),
            flag(bf16),
            flag(has_score),
            args_bytes.trim_end().parse().ok(),
        ) {
            (Some(config), Some(bf16), Some(has_score), Some(args_bytes)) => {
                let dtype = if bf16 { DType::Bf16 } else { DType::F16 };
                let own = [args_bytes].into_iter().filter(|&bytes| bytes > 0);
                let expected: Vec<usize> = GENERAL_PARAMETERS.into_iter().chain(own).collect();
                if let Some(difference) = Signature::difference(ptx, entry, &expected, config.threads()) {
                    return refuse(&format!("{entry}, but {difference}"), "as hopper-attention-builder made it");
                }
                Ok(Self { entry: entry.to_owned(), config, dtype, has_score, args_bytes })
            }
            _ => refuse(entry, &format!("a kernel with facts that can be, and they are: {}", words.join(" "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ptx(facts: &str) -> String {
        let [map, .., params, features] = GENERAL_PARAMETERS;
        let sizes = [map, map, map, map, params, features, 24];
        let array = |(index, bytes)| format!("\t.param .align 8 .b8 mine_param_{index}[{bytes}]");
        let parameters = sizes.into_iter().enumerate().map(array).collect::<Vec<_>>().join(",\n");
        format!(
            "// Made by hopper-attention-builder.\n{facts}\n.version 8.3\n.visible .entry mine(\n{parameters}\n)\n.maxntid 384, 1, 1\n{{\n}}\n"
        )
    }

    fn line(version: &str) -> String {
        format!("// attention_kernel {version} interface {INTERFACE} head_dim 96 tile_n 96 bf16 0 has_score 1 args_bytes 24")
    }

    fn own_version() -> String {
        VERSION.map(|number| number.to_string()).join(".")
    }

    #[test]
    fn a_kernel_says_what_it_is() {
        let kernel = CustomKernel::<[u64; 3]>::from_ptx(ptx(&line(&own_version()))).unwrap();
        assert_eq!((kernel.entry(), kernel.head_dim(), kernel.dtype(), kernel.args_bytes()), ("mine", 96, DType::F16, 24));
        assert!(kernel.kernel.has_score() && kernel.tile_n() == 96);
        let other = CustomKernel::from_ptx_untyped(ptx(&line(&own_version()))).unwrap();
        assert_ne!(kernel.kernel.id(), other.kernel.id());
        assert_eq!(kernel.kernel.id(), kernel.clone().kernel.id());
        assert_eq!(own_version(), env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn a_parameter_of_another_size_is_refused() {
        let text = ptx(&line(&own_version()));
        let expected = "args is of 16 bytes, but must be of 24 bytes, like the parameter that mine was defined with";
        assert_eq!(CustomKernel::<[u64; 2]>::from_ptx(text.as_str()).unwrap_err().to_string(), expected);
        let untyped = CustomKernel::from_ptx_untyped(text).unwrap();
        let bytes = [MaybeUninit::uninit(); 24];
        assert_eq!(Custom::new(&untyped, &bytes[..16]).err().unwrap().to_string(), expected);
        assert!(Custom::new(&untyped, &bytes[..]).is_ok());
    }

    #[test]
    fn what_is_no_such_kernel_is_refused() {
        let refused = |text: &str, words: &str| {
            let error = CustomKernel::from_ptx_untyped(text).unwrap_err().to_string();
            assert!(error.starts_with("ptx is ") && error.contains(words), "{error}");
        };
        let good = line(&own_version());
        refused("", "0 entries");
        refused(&format!("{}\0", ptx(&good)), "NUL");
        refused(&ptx(&good).replace("\n.version", "\n.visible .entry other(\n.version"), "2 entries");
        refused(&ptx(""), "its facts are missing");
        refused(&ptx(&line("0.0.0")), "made with version 0.0.0");
        refused(&ptx(&good.replace(&format!("interface {INTERFACE}"), "interface 0")), "interface 0");
        refused(&ptx(&good).replace("\n.version", "\n.entry other() .maxntid 384 { }\n.version"), "understood");
        refused(&ptx(&good).replace("mine_param_6[24]", "mine_param_6[32]"), "32] bytes");
        refused(&ptx(&good).replace(".maxntid 384", ".maxntid 512"), "512 threads, not 384");
        refused(&ptx(&good.replace("bytes 24", "bytes 0")), "24] bytes, not");
        refused(&ptx(&good).replace(".align 8 .b8 mine_param_6[24]", ".b64 mine_param_6"), "8] bytes");
        refused(&ptx(&good.replace(" args_bytes 24", "")), "facts this version understands");
        for (old, new) in [
            ("head_dim 96", "head_dim 80"),
            ("tile_n 96", "tile_n 100"),
            ("tile_n 96", "tile_n 256"),
            ("bf16 0", "bf16 2"),
            ("has_score 1", "has_score x"),
            ("bytes 24", "bytes -1"),
        ] {
            refused(&ptx(&good.replace(old, new)), "facts that can be");
        }
    }
}
