package controllertest_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/controllerkit/controllerkit/controllertest"
)

// TestKubeconfig: a program that takes only a file gets the faults and the rights of its
// process, nobody else can use the file, and it is removed.
//
// Proves X5.
func TestKubeconfig(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	files := map[string]int{}
	open := func(ctx context.Context, env *controllertest.Env) (*rest.Config, error) {
		file, err := env.Kubeconfig()
		if err != nil {
			return nil, err
		}
		mu.Lock()
		files[file]++
		mu.Unlock()
		if again, err := env.Kubeconfig(); err != nil || again != file {
			t.Errorf("a second call returns %q, %v, the first one %q", again, err, file)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the mode of the file is %v, %v", info.Mode(), err)
		}
		cfg, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			return nil, err
		}
		kube, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return nil, err
		}
		me, err := kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		if me.Status.UserInfo.Username != "kit" {
			t.Errorf("the requests come from %q, want the user of Options.Config", me.Status.UserInfo.Username)
		}
		other := cfg.Host[:strings.LastIndexByte(cfg.Host, '/')]
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, other+"/api/v1/namespaces", nil)
		if err != nil {
			return nil, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusNotFound {
			t.Errorf("somebody who knows only the port gets %s", response.Status)
		}
		return cfg, nil
	}
	c := copier{}
	s := c.scenario()
	s.Start = func(ctx context.Context, _ *rest.Config, env *controllertest.Env) error {
		cfg, err := open(ctx, env)
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			return nil
		}
		return c.start(ctx, cfg, env)
	}
	s.World = func(ctx context.Context, _ *rest.Config, env *controllertest.Env) error {
		if _, err := open(ctx, env); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	s.Script[0].Do = func(ctx context.Context, _ *rest.Config, env *controllertest.Env) error {
		cfg, err := open(ctx, env)
		if err != nil {
			return err
		}
		return createsA(ctx, cfg, env)
	}
	o := quick(t, dropped, "crash-after@create configmaps a-copy#1", "410(configmaps)@create configmaps a-copy#1")
	o.ConvergeTimeout = time.Minute
	o.Config.Impersonate = rest.ImpersonationConfig{UserName: "kit", Groups: []string{"system:masters"}}
	report := run(t, s, o)
	for _, f := range report.Failures {
		t.Error(f)
	}
	if report.Valid != 3 {
		t.Errorf("%d plans are valid, invalid %q", report.Valid, report.Invalid)
	}
	if len(files) != 7*3+1 {
		t.Errorf("%d files, want one for each user, World and process of 7 runs, with a second process in one", len(files))
	}
	for file, n := range files {
		if _, err := os.Stat(file); !os.IsNotExist(err) || n != 1 {
			t.Errorf("%s was used by %d and is left: %v", file, n, err)
		}
	}
	var env controllertest.Env
	if file, err := env.Kubeconfig(); file != "" || err == nil || !strings.Contains(fmt.Sprint(err), "use the one that the explorer passes") {
		t.Errorf("an Env of no run returns %q, %v", file, err)
	}
}

// TestLateKubeconfig: a program that asks for a file after its run gets none.
func TestLateKubeconfig(t *testing.T) {
	t.Parallel()
	s := (&copier{}).scenario()
	var users []*controllertest.Env
	var mu sync.Mutex
	s.Script[0].Do = func(ctx context.Context, cfg *rest.Config, env *controllertest.Env) error {
		mu.Lock()
		users = append(users, env)
		mu.Unlock()
		return createsA(ctx, cfg, env)
	}
	o := quick(t, dropped)
	o.ConvergeTimeout = time.Minute
	run(t, s, o)
	for _, env := range users {
		if file, err := env.Kubeconfig(); file != "" || err == nil || !strings.Contains(err.Error(), "the run has ended") {
			t.Errorf("after its run an Env returns %q, %v", file, err)
		}
	}
}
