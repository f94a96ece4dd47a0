package preview_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/controllerkit/controllerkit/preview"
)

// A loop without package operator. Its only key changes the image of a Deployment.
func Example_loop() {
	p := &preview.Preview{}
	config := &rest.Config{Host: "http://server"}
	config.Wrap(func(http.RoundTripper) http.RoundTripper { return cluster{} }) // instead of a real one
	config.Wrap(p.Transport)
	deployments := kubernetes.NewForConfigOrDie(config).AppsV1().Deployments("shop")

	reconcile := func(ctx context.Context, name string) error {
		if !preview.Skip(ctx, "announce %s", name) {
			announce(name)
		}
		_, err := deployments.Patch(ctx, name, types.StrategicMergePatchType, []byte(`{"spec": ...}`), metav1.PatchOptions{})
		return err
	}

	queue := preview.NewQueue[string](p)
	queue.Add("front")
	loop := func(ctx context.Context) error {
		context.AfterFunc(ctx, queue.ShutDown)
		for {
			name, stop := queue.Get()
			if stop {
				return nil
			}
			call, end := p.Begin(ctx, "images", name)
			end(reconcile(call, name))
			queue.Done(name)
		}
	}
	if err := p.Run(context.Background(), loop); err != nil {
		fmt.Println(err)
	}
	report := p.Report()
	if err := report.WriteText(os.Stdout); err != nil {
		fmt.Println(err)
	}
	fmt.Println("exit code", report.ExitCode())

	// Output:
	// images front
	//   change deployments.apps shop/front: restarts Pods
	//     .spec.template.spec.containers[name=web].image: "nginx:1.27" -> "nginx:1.28"
	//   skipped: announce front
	// 1 key ran. 0 objects would be created, 1 changed, 0 deleted. Pods are restarted by 1 change. 1 effect outside of the API server skipped.
	// exit code 2
}

func announce(string) {}

// cluster stands for an API server with one Deployment.
type cluster struct{}

func (cluster) RoundTrip(req *http.Request) (*http.Response, error) {
	image := "nginx:1.27"
	if body, _ := io.ReadAll(req.Body); string(body) != "{}" { // the first request reads it
		image = "nginx:1.28"
	}
	body := fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"front","namespace":"shop"},"spec":{"template":{"spec":{"containers":[{"name":"web","image":%q}]}}}}`, image)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
}
