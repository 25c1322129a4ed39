@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
var<workgroup> l1: array<f32, 1024>;
var<workgroup> l3: array<f32, 32>;
var<workgroup> l5: array<f32, 32>;
var<private> zero: u32;
fn float_of(bits: u32) -> f32 { return bitcast<f32>(bits); }
fn floordiv_i32(x: i32, y: i32) -> i32 {
  if (y == 0) { return 0; }
  if (y == -1) { return 0 - x; }
  let q = x / y;
  let r = x - q * y;
  return select(q, q - 1, r != 0 && ((r < 0) != (y < 0)));
}
fn rem_i32(x: i32, y: i32) -> i32 {
  if (y == 0 || y == -1) { return 0; }
  return x - (x / y) * y;
}
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn max_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) & bitcast<u32>(y)); }
  return select(y, x, x > y);
}
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
fn min_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) | bitcast<u32>(y)); }
  return select(y, x, x < y);
}
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  var l0: f32;
  var l2: f32;
  var l4: f32;
  var l6: f32;
  zero = group.z;  // a grid has one layer
  let i_row = i32(group.x + group.y * 65535u);
  if (i_row < 64i) {
    let i_thread = i32(local.x);
    if (i_thread < 32i) {
      l4 = float_of(0xff800000u);
      for (var i_step = 0i; i_step < 4i; i_step++) {
        for (var i_step_1 = 0i; i_step_1 < 8i; i_step_1++) {
          let v1 = l4;
          let v2 = i_row * 1024i;
          let v3 = floordiv_i32(i_thread, 16i);
          let v4 = v3 * 512i;
          let v5 = v2 + v4;
          let v6 = rem_i32(i_thread, 16i);
          let v7 = v5 + v6;
          let v8 = i_step * 128i;
          let v9 = v7 + v8;
          let v10 = i_step_1 * 16i;
          let v11 = v9 + v10;
          let v12 = b0[v11];
          let v13 = max_f32(f32(v1), f32(v12));
          l4 = v13;
        }
      }
      let v14 = l4;
      l3[i_thread] = v14;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_1 = i32(local.x);
    if (i_thread_1 < 16i) {
      let v15 = floordiv_i32(i_thread_1, 16i);
      let v16 = v15 * 32i;
      let v17 = rem_i32(i_thread_1, 16i);
      let v18 = v16 + v17;
      let v19 = l3[v18];
      let v20 = v18 + 16i;
      let v21 = l3[v20];
      let v22 = max_f32(f32(v19), f32(v21));
      l3[v18] = v22;
    }
    workgroupBarrier();
    storageBarrier();
    let v23 = l3[0i];
    let v24 = l3[8i];
    let v25 = max_f32(f32(v23), f32(v24));
    let v26 = l3[4i];
    let v27 = l3[12i];
    let v28 = max_f32(f32(v26), f32(v27));
    let v29 = max_f32(f32(v25), f32(v28));
    let v30 = l3[2i];
    let v31 = l3[10i];
    let v32 = max_f32(f32(v30), f32(v31));
    let v33 = l3[6i];
    let v34 = l3[14i];
    let v35 = max_f32(f32(v33), f32(v34));
    let v36 = max_f32(f32(v32), f32(v35));
    let v37 = max_f32(f32(v29), f32(v36));
    let v38 = l3[1i];
    let v39 = l3[9i];
    let v40 = max_f32(f32(v38), f32(v39));
    let v41 = l3[5i];
    let v42 = l3[13i];
    let v43 = max_f32(f32(v41), f32(v42));
    let v44 = max_f32(f32(v40), f32(v43));
    let v45 = l3[3i];
    let v46 = l3[11i];
    let v47 = max_f32(f32(v45), f32(v46));
    let v48 = l3[7i];
    let v49 = l3[15i];
    let v50 = max_f32(f32(v48), f32(v49));
    let v51 = max_f32(f32(v47), f32(v50));
    let v52 = max_f32(f32(v44), f32(v51));
    let v53 = max_f32(f32(v37), f32(v52));
    l0 = v53;
    let i_thread_2 = i32(local.x);
    if (i_thread_2 < 32i) {
      l6 = float_of(0x80000000u);
      for (var i_step_2 = 0i; i_step_2 < 4i; i_step_2++) {
        for (var i_step_3 = 0i; i_step_3 < 8i; i_step_3++) {
          let v54 = i_row * 1024i;
          let v55 = floordiv_i32(i_thread_2, 16i);
          let v56 = v55 * 512i;
          let v57 = v54 + v56;
          let v58 = rem_i32(i_thread_2, 16i);
          let v59 = v57 + v58;
          let v60 = i_step_2 * 128i;
          let v61 = v59 + v60;
          let v62 = i_step_3 * 16i;
          let v63 = v61 + v62;
          let v64 = b0[v63];
          let v65 = l0;
          let v66 = exact(v64 - v65);
          let v67 = max_f32(f32(v66), f32(-1.760000000e+02f));
          let v68 = min_f32(f32(v67), f32(9.000000000e+01f));
          let v69 = exact(fma(v68, 1.442695022e+00f, 1.258316600e+07f));
          let v70 = exact(v69 - 1.258316600e+07f);
          let v71 = exact(fma(v70, -6.931457520e-01f, v68));
          let v72 = exact(fma(v70, -1.428606765e-06f, v71));
          let v73 = exact(fma(1.394650782e-03f, v72, 8.366573602e-03f));
          let v74 = exact(fma(v73, v72, 4.166628048e-02f));
          let v75 = exact(fma(v74, v72, 1.666654348e-01f));
          let v76 = exact(fma(v75, v72, 5.000000000e-01f));
          let v77 = exact(fma(v76, v72, 1.000000000e+00f));
          let v78 = exact(fma(v77, v72, 1.000000000e+00f));
          let v79 = bitcast<i32>(v69);
          let v80 = v79 << 22u;
          let v81 = v80 & -8388608i;
          let v82 = bitcast<f32>(v81);
          let v83 = exact(v78 * v82);
          let v84 = v79 << 23u;
          let v85 = v84 - v81;
          let v86 = bitcast<f32>(v85);
          let v87 = exact(v83 * v86);
          let v88 = v56 + v58;
          let v89 = v88 + v60;
          let v90 = v89 + v62;
          l1[v90] = v87;
          let v91 = l6;
          let v92 = exact(v91 + v87);
          l6 = v92;
        }
      }
      let v93 = l6;
      l5[i_thread_2] = v93;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_3 = i32(local.x);
    if (i_thread_3 < 16i) {
      let v94 = floordiv_i32(i_thread_3, 16i);
      let v95 = v94 * 32i;
      let v96 = rem_i32(i_thread_3, 16i);
      let v97 = v95 + v96;
      let v98 = l5[v97];
      let v99 = v97 + 16i;
      let v100 = l5[v99];
      let v101 = exact(v98 + v100);
      l5[v97] = v101;
    }
    workgroupBarrier();
    storageBarrier();
    let v102 = l5[0i];
    let v103 = l5[8i];
    let v104 = exact(v102 + v103);
    let v105 = l5[4i];
    let v106 = l5[12i];
    let v107 = exact(v105 + v106);
    let v108 = exact(v104 + v107);
    let v109 = l5[2i];
    let v110 = l5[10i];
    let v111 = exact(v109 + v110);
    let v112 = l5[6i];
    let v113 = l5[14i];
    let v114 = exact(v112 + v113);
    let v115 = exact(v111 + v114);
    let v116 = exact(v108 + v115);
    let v117 = l5[1i];
    let v118 = l5[9i];
    let v119 = exact(v117 + v118);
    let v120 = l5[5i];
    let v121 = l5[13i];
    let v122 = exact(v120 + v121);
    let v123 = exact(v119 + v122);
    let v124 = l5[3i];
    let v125 = l5[11i];
    let v126 = exact(v124 + v125);
    let v127 = l5[7i];
    let v128 = l5[15i];
    let v129 = exact(v127 + v128);
    let v130 = exact(v126 + v129);
    let v131 = exact(v123 + v130);
    let v132 = exact(v116 + v131);
    l2 = v132;
    let i_thread_4 = i32(local.x);
    if (i_thread_4 < 32i) {
      for (var i_item = 0i; i_item < 32i; i_item++) {
        let v133 = i_row * 1024i;
        let v134 = i_item * 32i;
        let v135 = v133 + v134;
        let v136 = v135 + i_thread_4;
        let v137 = v134 + i_thread_4;
        let v138 = l1[v137];
        let v139 = l2;
        let v140 = exact(v138 / v139);
        b1[v136] = v140;
      }
    }
  }
}
