// The test files of this package, by what they prove. Tests on the real API server have Server in
// their name. GUARANTEES.md has the tests of each promise.
//
//   - the judge: oracle, judge, normalize, observe, mine, shown, alarm, doubt, honest, loop, declared
//   - the run: rest, hurry, user, drift, upgrade, travel, world, faults, plan, renew, process,
//     kubeconfig, kubeconfig_internal, crds
//   - the report: confirm, page, folder
//   - misuse: bad, scheme
//   - no proof: example, first (the test of the package comment), greeter, helpers, main

package controllertest_test
