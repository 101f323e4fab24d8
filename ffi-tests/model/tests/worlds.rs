//! A test for each kind of world. See `weft_model::run` for how to replay a failure.

use weft_model::run::World;

macro_rules! worlds {
    ($($name:ident: $fabric:literal $(on $rails:literal)?, $manual:literal;)*) => {
        $(#[test]
        fn $name() {
            #[allow(unused_mut, unused_assignments)]
            let mut rails = None;
            $(rails = Some($rails);)?
            World { name: stringify!($name), fabric: $fabric, rails, manual: $manual }.test();
        })*
    };
}

worlds! {
    tcp_threads: "tcp" on "lo", false;
    tcp_manual: "tcp" on "lo", true;
    host_threads: "host", false;
    host_manual: "host", true;
    sim_tcp: "sim:like=tcp", false;
    sim_tcp_rails: "sim:like=tcp:rails=4", false;
    sim_tcp_virtual: "sim:like=tcp:clock=virtual:delay_us=5:gbps=100", true;
    sim_tcp_rails_virtual: "sim:like=tcp:rails=4:clock=virtual:delay_us=5:gbps=100", true;
    sim_efa: "sim:like=efa", false;
    sim_efa_rails: "sim:like=efa:rails=4", false;
    sim_efa_virtual: "sim:like=efa:clock=virtual:delay_us=5:gbps=100", true;
    sim_efa_rails_virtual: "sim:like=efa:rails=4:clock=virtual:delay_us=5:gbps=100", true;
    sim_efa_direct: "sim:like=efa-direct", false;
    sim_efa_direct_rails: "sim:like=efa-direct:rails=4", false;
    sim_efa_direct_virtual: "sim:like=efa-direct:clock=virtual:delay_us=5:gbps=100", true;
    sim_efa_direct_rails_virtual: "sim:like=efa-direct:rails=4:clock=virtual:delay_us=5:gbps=100", true;
    sim_verbs: "sim:like=verbs", false;
    sim_verbs_rails: "sim:like=verbs:rails=4", false;
    sim_verbs_virtual: "sim:like=verbs:clock=virtual:delay_us=5:gbps=100", true;
    sim_verbs_rails_virtual: "sim:like=verbs:rails=4:clock=virtual:delay_us=5:gbps=100", true;
}
