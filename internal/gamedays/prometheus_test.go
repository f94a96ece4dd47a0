package gamedays

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/controllerkit/controllerkit/internal/alertclock"
	"github.com/controllerkit/controllerkit/internal/lab"
)

// faster is how many times sooner the alerts fire. With more, a crash of the leader, which takes 15s in any
// case, would page.
const faster = 5

// A prom is a Prometheus with the shipped alerts, which scrapes the replicas each second.
type prom struct {
	url   string
	dir   string
	cmd   *exec.Cmd
	ended chan struct{}
	start func(t testing.TB)
}

func startProm(t testing.TB, root string, pods []*pod, token string, ca []byte) *prom {
	t.Helper()
	dir := t.TempDir()
	rules, err := os.ReadFile(filepath.Join(root, "metrics/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
  - job_name: website-operator
    scheme: https
    authorization: {credentials_file: %q}
    tls_config: {ca_file: %q}
    file_sd_configs: [{files: [%q]}]
`, filepath.Join(dir, "rules.yaml"), filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt"), filepath.Join(dir, "targets.json"))
	for name, data := range map[string][]byte{"prometheus.yaml": []byte(config), "rules.yaml": alertclock.Faster(rules, faster), "token": []byte(token), "ca.crt": ca} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr, err := lab.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	p := &prom{url: "http://" + addr, dir: dir}
	p.scrape(t, pods)
	p.start = func(t testing.TB) {
		t.Helper()
		output, err := os.Create(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer output.Close()
		p.cmd = exec.Command(filepath.Join(root, "bin/prometheus"), "--config.file", filepath.Join(dir, "prometheus.yaml"),
			"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", addr, "--log.level", "warn")
		p.cmd.Stdout, p.cmd.Stderr = output, output
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.ended = make(chan struct{})
		go func(cmd *exec.Cmd, ended chan struct{}) { _ = cmd.Wait(); close(ended) }(p.cmd, p.ended)
		for deadline := time.Now().Add(limit); ; {
			if r, err := http.Get(p.url + "/-/ready"); err == nil {
				r.Body.Close()
				if r.StatusCode == http.StatusOK {
					return
				}
			}
			select {
			case <-p.ended:
				text, _ := os.ReadFile(output.Name())
				t.Fatalf("Prometheus has ended:\n%s", text)
			case <-time.After(50 * time.Millisecond):
			}
			if time.Now().After(deadline) {
				t.Fatal("Prometheus is not ready")
			}
		}
	}
	p.start(t)
	t.Cleanup(p.stop)
	return p
}

// scrape makes it scrape the replicas, and no others.
func (p *prom) scrape(t testing.TB, pods []*pod) {
	t.Helper()
	var addrs []string
	for _, pod := range pods {
		addrs = append(addrs, pod.addr)
	}
	data, err := json.Marshal([]map[string]any{{"targets": addrs}})
	file := filepath.Join(p.dir, "targets.json")
	if err == nil {
		err = errors.Join(os.WriteFile(file+".new", data, 0o600), os.Rename(file+".new", file))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p *prom) stop() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// get decodes the data of a response.
func (p *prom) get(path string, values url.Values, into any) error {
	r, err := http.Get(p.url + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer r.Body.Close()
	var response struct {
		Error string
		Data  json.RawMessage
	}
	if err := json.NewDecoder(r.Body).Decode(&response); err != nil {
		return err
	}
	if r.StatusCode != http.StatusOK {
		return errors.New(cmp.Or(response.Error, r.Status))
	}
	return json.Unmarshal(response.Data, into)
}

// query returns the values of an instant query, by the values of a label.
func (p *prom) query(query, label string) (map[string]float64, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := p.get("/api/v1/query", url.Values{"query": {query}}, &data); err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		values[r.Metric[label]] = v
	}
	return values, nil
}

// fired returns the alerts that have fired in the past, with their first second.
func (p *prom) fired(begin time.Time) (map[string]bool, error) {
	values, err := p.query(fmt.Sprintf(`count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[%ds]))`, int(time.Since(begin).Seconds())+1), "alertname")
	fired := map[string]bool{}
	for name := range values {
		fired[name] = true
	}
	return fired, err
}
