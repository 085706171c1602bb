// Prints how Go encodes the built-in kinds, one type a line.
package main

import (
	"fmt"

	"reflect"
	"sort"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var lines = map[string]string{}
var pending []reflect.Type

var owner = map[string]reflect.Type{}

func name(t reflect.Type) string {
	if o, ok := owner[t.Name()]; ok && o != t {
		parts := strings.Split(t.PkgPath(), "/")
		return parts[len(parts)-2] + "." + t.Name()
	}
	return t.Name()
}

func kind(t reflect.Type) string {
	switch t {
	case reflect.TypeOf(metav1.Time{}):
		return "time"
	case reflect.TypeOf(metav1.MicroTime{}):
		return "micro"
	case reflect.TypeOf(resource.Quantity{}):
		return "quantity"
	case reflect.TypeOf(intstr.IntOrString{}):
		return "int-or-string"
	case reflect.TypeOf(runtime.RawExtension{}), reflect.TypeOf(metav1.FieldsV1{}):
		return "raw"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int32, reflect.Int, reflect.Int64, reflect.Uint16, reflect.Float64, reflect.Uint8, reflect.Int16:
		return t.Kind().String()
	case reflect.Ptr:
		return "*" + kind(t.Elem())
	case reflect.Map:
		return "{}" + kind(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "[]" + kind(t.Elem())
	case reflect.Struct:
		if o, ok := owner[name(t)]; ok && o != t {
			panic("two types named " + name(t) + " " + t.PkgPath() + " " + o.PkgPath())
		}
		if _, ok := owner[name(t)]; !ok {
			owner[name(t)] = t
			pending = append(pending, t)
		}
		return name(t)
	}
	panic(t.String())
}

func fields(t reflect.Type) []string {
	var out []string
	for i := 0; i < t.NumField(); i++ {
		f := t.Field(i)
		tag := strings.Split(f.Tag.Get("json"), ",")
		opts := strings.Join(tag[1:], ",")
		if tag[0] == "-" || f.PkgPath != "" {
			continue
		}
		if tag[0] == "" && f.Anonymous {
			ft := f.Type
			if ft.Kind() == reflect.Ptr {
				ft = ft.Elem()
			}
			out = append(out, fields(ft)...)
			continue
		}
		if tag[0] == "" {
			panic(t.String() + f.Name)
		}
		k := kind(f.Type)
		mark := "!"
		base := f.Type.Kind()
		if strings.Contains(opts, "omitzero") || (strings.Contains(opts, "omitempty") && (base != reflect.Struct)) {
			mark = ""
		}
		if strings.Contains(opts, "omitzero") && base == reflect.Struct && f.Type != reflect.TypeOf(metav1.Time{}) {
			panic("omitzero " + t.String())
		}
		out = append(out, tag[0]+mark+":"+k)
	}
	return out
}

func main() {
	roots := []interface{}{
		corev1.Pod{}, corev1.Service{}, corev1.Node{}, corev1.Namespace{}, corev1.ConfigMap{}, corev1.Secret{},
		corev1.ServiceAccount{}, corev1.Event{}, corev1.ResourceQuota{}, corev1.LimitRange{}, corev1.PersistentVolumeClaim{},
		corev1.PersistentVolume{}, corev1.Endpoints{},
		appsv1.Deployment{}, appsv1.ReplicaSet{}, appsv1.StatefulSet{}, appsv1.DaemonSet{},
		batchv1.Job{}, discoveryv1.EndpointSlice{}, networkingv1.Ingress{}, networkingv1.IngressClass{},
		networkingv1.NetworkPolicy{}, nodev1.RuntimeClass{}, coordinationv1.Lease{}, policyv1.PodDisruptionBudget{},
		rbacv1.Role{}, rbacv1.RoleBinding{}, rbacv1.ClusterRole{}, rbacv1.ClusterRoleBinding{},
		certificatesv1.CertificateSigningRequest{}, eventsv1.Event{}, schedulingv1.PriorityClass{}, storagev1.StorageClass{},
		admissionv1.ValidatingWebhookConfiguration{}, admissionv1.MutatingWebhookConfiguration{},
		authenticationv1.TokenRequest{}, authenticationv1.TokenReview{}, authorizationv1.SubjectAccessReview{},
		authorizationv1.SelfSubjectAccessReview{}, authenticationv1.SelfSubjectReview{},
	}
	for _, r := range roots {
		kind(reflect.TypeOf(r))
	}
	for len(pending) > 0 {
		t := pending[0]
		pending = pending[1:]
		lines[name(t)] = strings.Join(fields(t), " ")
	}
	var names []string
	for n := range lines {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		line := n
		for _, f := range strings.Fields(lines[n]) {
			if len(line)+1+len(f) > 128 {
				fmt.Println(line)
				line = " "
			}
			line += " " + f
		}
		fmt.Println(line)
	}
}
