//! Host-guest protocol: frames, multiplexer and messages, without IO.
