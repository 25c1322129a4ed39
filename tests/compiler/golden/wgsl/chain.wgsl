@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
var<private> zero: u32;
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
fn truth(x: bool) -> bool { return (u32(x) ^ zero) != 0u; }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn max_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) & bitcast<u32>(y)); }
  return select(y, x, x > y);
}
fn min_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) | bitcast<u32>(y)); }
  return select(y, x, x < y);
}
fn to_i32(x: f32) -> i32 {
  if (is_nan(x)) { return 0; }
  if (x >= 2147483648.0f) { return 2147483647; }
  if (x <= -2147483648.0f) { return -2147483647 - 1; }
  return i32(x);
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  zero = group.z;  // a grid has one layer
  let i_block = i32(group.x + group.y * 65535u);
  if (i_block < 256i) {
    let i_thread = i32(local.x);
    if (i_thread < 256i) {
      let v1 = i_block * 256i;
      let v2 = v1 + i_thread;
      let v3 = b0[v2];
      let v4 = b1[v2];
      let v5 = exact(v3 * v4);
      let v6 = b2[v2];
      let v7 = exact(v5 + v6);
      let v8 = abs(v7);
      let v9 = truth(v8 < 5.500000119e-01f);
      let v10 = exact(v8 * v8);
      let v11 = exact(v8 * v10);
      let v12 = exact(-6.282533985e-03f * v10);
      let v13 = exact(v12 + 2.107780427e-02f);
      let v14 = exact(v13 * v10);
      let v15 = exact(v14 + -5.385386944e-02f);
      let v16 = exact(v15 * v10);
      let v17 = exact(v16 + 1.333260238e-01f);
      let v18 = exact(v17 * v10);
      let v19 = exact(v18 + -3.333331943e-01f);
      let v20 = exact(v11 * v19);
      let v21 = exact(v8 + v20);
      let v22 = exact(2.000000000e+00f * v8);
      let v23 = max_f32(f32(v22), f32(-1.050000000e+02f));
      let v24 = min_f32(f32(v23), f32(9.000000000e+01f));
      let v25 = exact(v24 * 1.442695022e+00f);
      let v26 = round(v25);
      let v27 = exact(v26 * 6.931457520e-01f);
      let v28 = exact(v24 - v27);
      let v29 = exact(v26 * 1.428606765e-06f);
      let v30 = exact(v28 - v29);
      let v31 = exact(v30 * v30);
      let v32 = exact(1.394650782e-03f * v30);
      let v33 = exact(v32 + 8.366573602e-03f);
      let v34 = exact(v33 * v30);
      let v35 = exact(v34 + 4.166628048e-02f);
      let v36 = exact(v35 * v30);
      let v37 = exact(v36 + 1.666654348e-01f);
      let v38 = exact(v37 * v30);
      let v39 = exact(v38 + 5.000000000e-01f);
      let v40 = exact(v31 * v39);
      let v41 = exact(v30 + v40);
      let v42 = exact(1.000000000e+00f + v41);
      let v43 = to_i32(f32(v26));
      let v44 = v43 >> 1u;
      let v45 = v44 + 127i;
      let v46 = v45 << 23u;
      let v47 = bitcast<f32>(v46);
      let v48 = exact(v42 * v47);
      let v49 = v43 - v44;
      let v50 = v49 + 127i;
      let v51 = v50 << 23u;
      let v52 = bitcast<f32>(v51);
      let v53 = exact(v48 * v52);
      let v54 = exact(v53 + 1.000000000e+00f);
      let v55 = exact(2.000000000e+00f / v54);
      let v56 = exact(1.000000000e+00f - v55);
      let v57 = select(v56, v21, v9);
      let v58 = bitcast<i32>(v57);
      let v59 = v58 & 2147483647i;
      let v60 = bitcast<i32>(v7);
      let v61 = v60 & (-2147483647 - 1);
      let v62 = v59 | v61;
      let v63 = bitcast<f32>(v62);
      b3[v2] = v63;
    }
  }
}
