//! Base images and guest kernels: build, store, set-up plan.
