// Package cloud is a fake of an external service that a controller manages, such as
// accounts, buckets or machines. It has the properties that make such services hard:
// ids that the service chooses, missing idempotency tokens, and stale reads.
//
// It replaces a hand-written fake in an exploration. All handles on a service share its
// resources: controllertest gives the controller a handle whose calls pass through the faults of
// the plan, and the user a handle without faults.
//
//	service := cloud.New(cloud.Options{})
//	made, err := service.Create(ctx, cloud.Resource{Name: "account-a"})
//
// Most callers need the methods of Env.Cloud and the fields of [Options].
//
// # Guarantees
//
//   - E1: Each call is atomic, and calls run one after the other.
//   - E2: If a controller in another process calls the fake service by [Connect], each call
//     runs at most once, the errors of the service are the same for errors.Is, and a call
//     whose outcome is unknown returns another error.
package cloud
