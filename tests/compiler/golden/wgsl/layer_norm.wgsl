@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
var<workgroup> l6: array<f32, 32>;
var<workgroup> l8: array<f32, 32>;
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
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  var l0: f32;
  var l1: f32;
  var l2: f32;
  var l3: f32;
  var l4: f32;
  var l5: f32;
  var l7: f32;
  var l9: f32;
  zero = group.z;  // a grid has one layer
  let i_row = i32(group.x + group.y * 65535u);
  if (i_row < 64i) {
    let i_thread = i32(local.x);
    if (i_thread < 32i) {
      l7 = float_of(0x80000000u);
      for (var i_step = 0i; i_step < 4i; i_step++) {
        for (var i_step_1 = 0i; i_step_1 < 8i; i_step_1++) {
          let v1 = l7;
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
          let v13 = exact(v1 + v12);
          l7 = v13;
        }
      }
      let v14 = l7;
      l6[i_thread] = v14;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_1 = i32(local.x);
    if (i_thread_1 < 16i) {
      let v15 = floordiv_i32(i_thread_1, 16i);
      let v16 = v15 * 32i;
      let v17 = rem_i32(i_thread_1, 16i);
      let v18 = v16 + v17;
      let v19 = l6[v18];
      let v20 = v18 + 16i;
      let v21 = l6[v20];
      let v22 = exact(v19 + v21);
      l6[v18] = v22;
    }
    workgroupBarrier();
    storageBarrier();
    let v23 = l6[0i];
    let v24 = l6[8i];
    let v25 = exact(v23 + v24);
    let v26 = l6[4i];
    let v27 = l6[12i];
    let v28 = exact(v26 + v27);
    let v29 = exact(v25 + v28);
    let v30 = l6[2i];
    let v31 = l6[10i];
    let v32 = exact(v30 + v31);
    let v33 = l6[6i];
    let v34 = l6[14i];
    let v35 = exact(v33 + v34);
    let v36 = exact(v32 + v35);
    let v37 = exact(v29 + v36);
    let v38 = l6[1i];
    let v39 = l6[9i];
    let v40 = exact(v38 + v39);
    let v41 = l6[5i];
    let v42 = l6[13i];
    let v43 = exact(v41 + v42);
    let v44 = exact(v40 + v43);
    let v45 = l6[3i];
    let v46 = l6[11i];
    let v47 = exact(v45 + v46);
    let v48 = l6[7i];
    let v49 = l6[15i];
    let v50 = exact(v48 + v49);
    let v51 = exact(v47 + v50);
    let v52 = exact(v44 + v51);
    let v53 = exact(v37 + v52);
    l0 = v53;
    let v54 = l0;
    let v55 = exact(v54 * 9.765625000e-04f);
    l1 = v55;
    let i_thread_2 = i32(local.x);
    if (i_thread_2 < 32i) {
      l9 = float_of(0x80000000u);
      for (var i_step_2 = 0i; i_step_2 < 4i; i_step_2++) {
        for (var i_step_3 = 0i; i_step_3 < 8i; i_step_3++) {
          let v56 = l9;
          let v57 = i_row * 1024i;
          let v58 = floordiv_i32(i_thread_2, 16i);
          let v59 = v58 * 512i;
          let v60 = v57 + v59;
          let v61 = rem_i32(i_thread_2, 16i);
          let v62 = v60 + v61;
          let v63 = i_step_2 * 128i;
          let v64 = v62 + v63;
          let v65 = i_step_3 * 16i;
          let v66 = v64 + v65;
          let v67 = b0[v66];
          let v68 = l1;
          let v69 = exact(v67 - v68);
          let v70 = exact(v69 * v69);
          let v71 = exact(v56 + v70);
          l9 = v71;
        }
      }
      let v72 = l9;
      l8[i_thread_2] = v72;
    }
    workgroupBarrier();
    storageBarrier();
    let i_thread_3 = i32(local.x);
    if (i_thread_3 < 16i) {
      let v73 = floordiv_i32(i_thread_3, 16i);
      let v74 = v73 * 32i;
      let v75 = rem_i32(i_thread_3, 16i);
      let v76 = v74 + v75;
      let v77 = l8[v76];
      let v78 = v76 + 16i;
      let v79 = l8[v78];
      let v80 = exact(v77 + v79);
      l8[v76] = v80;
    }
    workgroupBarrier();
    storageBarrier();
    let v81 = l8[0i];
    let v82 = l8[8i];
    let v83 = exact(v81 + v82);
    let v84 = l8[4i];
    let v85 = l8[12i];
    let v86 = exact(v84 + v85);
    let v87 = exact(v83 + v86);
    let v88 = l8[2i];
    let v89 = l8[10i];
    let v90 = exact(v88 + v89);
    let v91 = l8[6i];
    let v92 = l8[14i];
    let v93 = exact(v91 + v92);
    let v94 = exact(v90 + v93);
    let v95 = exact(v87 + v94);
    let v96 = l8[1i];
    let v97 = l8[9i];
    let v98 = exact(v96 + v97);
    let v99 = l8[5i];
    let v100 = l8[13i];
    let v101 = exact(v99 + v100);
    let v102 = exact(v98 + v101);
    let v103 = l8[3i];
    let v104 = l8[11i];
    let v105 = exact(v103 + v104);
    let v106 = l8[7i];
    let v107 = l8[15i];
    let v108 = exact(v106 + v107);
    let v109 = exact(v105 + v108);
    let v110 = exact(v102 + v109);
    let v111 = exact(v95 + v110);
    l2 = v111;
    let v112 = l2;
    let v113 = exact(v112 * 9.765625000e-04f);
    l3 = v113;
    let v114 = l3;
    let v115 = exact(v114 + 9.999999747e-06f);
    l4 = v115;
    let v116 = l4;
    let v117 = sqrt(v116);
    l5 = v117;
    let i_thread_4 = i32(local.x);
    if (i_thread_4 < 32i) {
      for (var i_item = 0i; i_item < 32i; i_item++) {
        let v118 = i_row * 1024i;
        let v119 = i_item * 32i;
        let v120 = v118 + v119;
        let v121 = v120 + i_thread_4;
        let v122 = b0[v121];
        let v123 = l1;
        let v124 = exact(v122 - v123);
        let v125 = l5;
        let v126 = exact(v124 / v125);
        let v127 = v119 + i_thread_4;
        let v128 = b1[v127];
        let v129 = exact(v126 * v128);
        let v130 = b2[v127];
        let v131 = exact(v129 + v130);
        b3[v121] = v131;
      }
    }
  }
}
